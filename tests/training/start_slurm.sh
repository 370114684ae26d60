#!/bin/bash
# Starts or stops a one-node Slurm on this machine, as root, for a test: start_slurm.sh FOLDER start|stop.
#
# Configuration, state and logs are in FOLDER; export SLURM_CONF=FOLDER/slurm.conf to use it. The node claims 8 CPUs, so
# that a machine of any size takes the job. Debian: apt-get install slurm-wlm munge.
set -eu
folder=$(realpath "$1")

stop() {
    # The job of a failed test would wait for ever for daemons that are gone.
    export SLURM_CONF="$folder/slurm.conf"
    timeout 5 scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
    timeout 20 bash -c 'while squeue --noheader | grep -q .; do :; done' 2>/dev/null || true
    for daemon in slurmd slurmctld munged; do
        if [ -s "$folder/$daemon.pid" ]; then kill "$(cat "$folder/$daemon.pid")" 2>/dev/null || true; fi
    done
}

start() {
    mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
    chmod 755 "$folder"
    dd if=/dev/urandom of="$folder/munge/key" bs=1 count=1024 status=none
    chmod 600 "$folder/munge/key"
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" --num-threads=2
    host=$(hostname -s)
    cat > "$folder/slurm.conf" <<EOF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(( 21000 + RANDOM % 4000 ))
SlurmdPort=$(( 25000 + RANDOM % 4000 ))
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
MpiDefault=none
KillWait=60
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOF
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld -f "$SLURM_CONF"
    slurmd -f "$SLURM_CONF"
}

"$2"
