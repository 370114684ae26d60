"""A run as a Slurm job: the sbatch script that starts Ray on every node of one allocation, and the run on it.

Tasks of a lost node run again on the other nodes. The first node has Ray's head and the run: if it is lost, which the
other nodes detect, or the time limit is reached, the job is requeued, and the same command resumes. With options of
srun, such as a container's image, Ray and the run are job steps with these options; what needs Slurm's commands stays
outside.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
from shutil import which
from typing import TYPE_CHECKING, Final

from mtnlg_data.console import Failure, UsageFailure

from .ray_cluster import OBJECT_STORE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Options = dict[str, str | None]
#: One task per node, on the whole node; one job at a time per name, which is derived from the output; the signal comes
#: two minutes before the time limit.
OURS: Final = {
    "dependency": "singleton",
    "time": "24:00:00",
    "ntasks-per-node": "1",
    "exclusive": "",
    "mem": "0",
    "no-kill": "",  # else any lost node requeues the job, which then waits for as many nodes
    "requeue": "",
    "open-mode": "append",
    "signal": "B:USR1@120",
}
TEMPLATE: Final = """#!/bin/bash
{header}

{setup}
# Written by mtnlg-data run --launcher slurm: Ray on every node of the job, and the run on it.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$PWD/.ray-token-$SLURM_JOB_ID RAY_USAGE_STATS_ENABLED=0
RAY_HEAD=$({address})
[ -n "$RAY_HEAD" ] || exit 1  # what prints the address has said why not
# A free port above those of Ray's workers (to 19999) and below those that the kernel gives out (from 32768).
until RAY_PORT=$((20000 + RANDOM % 12000)) && ! (: < "/dev/tcp/$RAY_HEAD/$RAY_PORT") 2> /dev/null; do :; done
RAY_FOLDER=$(mktemp -d)
RAY_AT=$RAY_HEAD:$RAY_PORT
[ "${{RAY_HEAD#*:}}" = "$RAY_HEAD" ] || RAY_AT="[$RAY_HEAD]:$RAY_PORT"  # of IPv6
export RAY_HEAD RAY_PORT RAY_AT RAY_FOLDER
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
trap 'kill $cluster; wait $cluster; rm -rf "$RAY_AUTH_TOKEN_PATH" "$RAY_FOLDER"' EXIT
(umask 077; od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n' > "$RAY_AUTH_TOKEN_PATH")

srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none bash -c {node} &
cluster=$!
until (: < "/dev/tcp/$RAY_HEAD/$RAY_PORT") 2> /dev/null; do
    kill -0 $cluster || exit 1
    sleep 1
done
{inside}{command} --ray "$RAY_AT" &
wait $!
"""
#: Starts a job step on this node, from within the task or script that runs on it.
INSIDE: Final = 'srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" --cpu-bind=none'
HEAD_SECONDS: Final = 600
"""Seconds that a node waits for the head to listen; the head's node may be lost before it does."""

#: Script of each node: the first node starts the head; the others wait until the head listens.
NODE: Final = """mkdir -p -m 700 "$RAY_FOLDER"
if [ "$SLURM_PROCID" = 0 ]; then
    where=(--head --node-ip-address="$RAY_HEAD" --port="$RAY_PORT" --include-dashboard=false --temp-dir="$RAY_FOLDER")
else
    where=(--address="$RAY_AT")
    for ((tries = 0; tries < {patience}; tries++)); do
        (: < "/dev/tcp/$RAY_HEAD/$RAY_PORT") 2> /dev/null && break
        sleep 1
    done
fi
stopped=
trap 'stopped=yes' TERM
{inside}{ray} start --block --num-cpus="$SLURM_CPUS_ON_NODE" --object-store-memory={object_store} "${{where[@]}}"
status=$?
# Without one of the other nodes the rest goes on; without the head they can do nothing. A node that goes early leaves
# the folder until the others go: where a site's temporary folders are shared, it is theirs too.
if [ "$SLURM_PROCID" = 0 ] && [ -z "$stopped" ]; then
    echo "mtnlg-data: Ray's head on $SLURMD_NODENAME ended with status $status" >&2
    scancel "$SLURM_JOB_ID.$SLURM_STEP_ID"
fi
until [ "$stopped" ] || ! (: < "/dev/tcp/$RAY_HEAD/$RAY_PORT") 2> /dev/null; do sleep 1; done
until [ "$stopped" ] || [ "$SLURM_PROCID" = 0 ] || scontrol requeue "$SLURM_JOB_ID"; do sleep 5; done
rm -rf "$RAY_FOLDER"
exit $status"""


def submit(*path: str, script: str | None = None, hint: str = "--dry-run prints the script") -> str:
    """Submit a script, or the one in a file, with sbatch; returns the job's number. ``hint`` is for lack of sbatch."""
    sbatch = which("sbatch")
    if sbatch is None:
        raise Failure(f"sbatch is not installed here; {hint}, to submit where it is")
    result = subprocess.run([sbatch, "--parsable", *path], input=script, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failure(f"{shlex.join(['sbatch', *path])}: {' '.join(result.stderr.split())}")
    return result.stdout.strip().split(";")[0]


def job_script(
    arguments: Sequence[str],
    sbatch: Sequence[str],
    interface: str | None,
    *,
    out: str,
    setup: Sequence[str] = (),
    srun: Sequence[str] = (),
) -> str:
    """The script of a job that runs ``mtnlg-data`` with these arguments and the address of its Ray.

    Jobs with the same ``out`` run one at a time, and log there unless it is a URL. ``setup`` has lines of bash that run
    first. ``sbatch`` has options of sbatch that are added to ours or replace them ("--NAME=false" removes one),
    ``srun`` options of the job steps that run Ray and the command. ``interface`` is the network interface of Ray's
    head, by default that of the machine's first address. Raises ``UsageFailure`` for a value that a script cannot hold.
    """
    refuse_controls(out, *arguments, *setup, interface or "")
    name = f"mtnlg-data-{hashlib.sha256(out.encode()).hexdigest()[:8]}"
    log = None if "://" in out else f"{out.replace('%', '%%')}/slurm-%j.log"
    options = {"job-name": name, **OURS, "output": log, **slurm_options("sbatch", sbatch, "nodes=16")}
    site = slurm_options("srun", srun, "container-image=/images/mtnlg.sqsh")
    inside = f"{INSIDE} {shlex.join(srun)} " if site else ""
    python = python_in(site)
    address = "hostname -I | cut -d ' ' -f 1"
    if interface is not None:
        first = """awk '$4 !~ /^fe80/ {sub("/.*", "", $4); print $4; exit}'"""  # not of the link alone
        address = f"ip -o address show dev {shlex.quote(interface)} | {first}"
    ray = f"{shlex.quote(python)} -m ray.scripts.scripts"
    node = NODE.format(inside=inside, ray=ray, object_store=OBJECT_STORE_BYTES, patience=HEAD_SECONDS)
    return TEMPLATE.format(
        header=directives(options),
        setup="\n".join(setup),
        address=address,
        node=shlex.quote(node),
        inside=inside,
        command=shlex.join([python, "-m", "mtnlg_data.cli", *arguments]),
    )


def refuse_controls(*texts: str) -> None:
    """Raise ``UsageFailure`` for a line break, which would start another line of a script, or what can hide one."""
    for text in texts:
        if not text.isprintable():
            raise UsageFailure(f"{text!r}: a job's script cannot contain a control character or line break")


def slurm_options(command: str, words: Iterable[str], example: str) -> Options:
    """Options of a Slurm command by name: "" for a flag; None, from "=false" or "=", to remove one of ours.

    Raises ``UsageFailure`` for a word that is not an option.
    """
    options: Options = {}
    for word in words:
        refuse_controls(word)
        match = re.fullmatch(r"--([a-z][a-z0-9-]*)(?:=(.*))?", word)
        if match is None:
            raise UsageFailure(f"--{command} {word}: write an option of {command}, such as --{command}=--{example}")
        options[match[1]] = None if match[2] in {"", "false"} else match[2] or ""
    return options


def python_in(site: Options) -> str:
    """The Python of a job step with these options of srun: a container has its own."""
    return "python3" if any(name.startswith("container") for name in site) else sys.executable


def directives(options: Options) -> str:
    """The #SBATCH lines: Slurm reads values in double quotes, with quotes and backslashes escaped by backslashes."""
    lines = []
    for name, value in options.items():
        if value is None:
            continue
        is_word = re.fullmatch(r"[\w@%+=:,./-]*", value, re.ASCII)
        text = value if is_word else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
        lines.append(f"#SBATCH --{name}={text}" if value else f"#SBATCH --{name}")
    return "\n".join(lines)
