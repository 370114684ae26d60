#!/bin/bash
# Starts or stops a Slurm of several nodes on this machine, as root, for a test: start_slurm.sh FOLDER start NODES|stop.
#
# Nodes are called n1, n2 … Each claims 8 CPUs, so that a machine of any size takes the job, and two GPUs that are plain
# files. Configuration, state and logs are in FOLDER; export SLURM_CONF=FOLDER/slurm.conf to use it. Debian: apt-get
# install slurm-wlm munge.
set -eu
folder=$(realpath "$1")
export SLURM_CONF="$folder/slurm.conf"

start() {
    mkdir -p "$folder"/{state,spool,munge}
    chmod 755 "$folder"
    head -c 1024 /dev/urandom > "$folder/munge/key"
    chmod 600 "$folder/munge/key"
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" --num-threads=2
    configure "$(hostname -s)" "$1" > "$SLURM_CONF"
    slurmctld -f "$SLURM_CONF"
    for node in $(seq -f n%g "$1"); do slurmd -f "$SLURM_CONF" -N "$node"; done
    for _ in $(seq 100); do
        if [ "$(sinfo --noheader --states=idle --format=%D)" = "$1" ]; then return; fi
        sleep 0.1
    done
    sinfo >&2
    tail -n 20 "$folder"/*.log "$folder/munge/log" >&2
    return 1
}

configure() {  # HOST NODES
    read -r -a ports <<< "$(free_ports $(("$2" + 1)))"
    cat <<CONF
ClusterName=here
SlurmctldHost=$1(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
MpiDefault=none
KillWait=60
SlurmdParameters=config_overrides
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    for number in $(seq "$2"); do
        echo "NodeName=n$number NodeHostname=$1 NodeAddr=127.0.0.1 Port=${ports[$number]} CPUs=8 RealMemory=4000 Gres=gpu:2"
        for gpu in 0 1; do
            touch "$folder/n$number-gpu$gpu"
            echo "NodeName=n$number Name=gpu File=$folder/n$number-gpu$gpu" >> "$folder/gres.conf"
        done
    done
}

free_ports() {
    python3 -c "
import socket
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range($1)]
print(*(one.getsockname()[1] for one in sockets))"
}

stop() {
    # While the daemons live, so that they end what they started: the job of a failed test, which would wait for ever.
    timeout 5 scancel --full --signal=KILL --user="$(id -un)" || true
    timeout 10 bash -c 'while squeue --noheader | grep -q .; do sleep 0.1; done' || true
    # The daemons and the processes of jobs: all, also where a test has killed a slurmd.
    munged=$(cat "$folder/munged.pid" 2>/dev/null || true)
    {
        if grep --quiet --text "$folder" "/proc/$munged/cmdline"; then echo "$munged"; fi
        find /proc/[0-9]*/cwd -maxdepth 0 -lname "$folder" | cut -d / -f 3
        grep --files-with-matches --text --null-data --line-regexp "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ |
            xargs --no-run-if-empty grep --files-with-matches --text SLURMD_NODENAME= | cut -d / -f 3
    } 2>/dev/null | xargs --no-run-if-empty kill -9 2>/dev/null || true
}

shift
"$@"
