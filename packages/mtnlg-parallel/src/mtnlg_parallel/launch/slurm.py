"""A run as a Slurm job: the sbatch script that starts one agent per node and keeps the run going to its end.

    complete               the job ends
    stopped by a signal    the job is requeued: Slurm signals the agents before the time limit and on preemption, and
                           their ranks write a checkpoint and exit with `Exit.STOPPED`
    a rank failed          ``mtnlg-parallel restart`` reads the failure files and decides: the ranks start again on
                           these nodes, or on a fresh allocation without those that failed twice, or the run ends
    nobody could decide    the job is requeued, as soon as slurmctld answers
    a node is lost         Slurm itself requeues the job
    submitted again        the second job waits until the first has ended (`singleton`, by a name that is the folder's)

The ranks' store (`rendezvous`) gets a port and a secret of its own at each attempt, in the environment that srun passes
on. With a container the package exists only inside it, so the script itself is bash and Slurm's commands alone.
"""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_data.engine import slurm
from mtnlg_model.console import UsageFailure
from mtnlg_model.files import write_text
from mtnlg_parallel.record.run_dir import LOGS, SUMMARY
from mtnlg_parallel.statuses import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

SCRIPT: Final = "train.sbatch"
WARNING_SECONDS: Final = 300
"""How long before the time limit Slurm signals the ranks: enough for a step and a checkpoint."""

CORES_PER_RANK: Final = 8
REQUEUE_TRIES: Final = 60
"""How often to try to requeue a job, every 10 s, while slurmctld does not answer."""

FIXED: Final = {"nodes", "ntasks", "ntasks-per-node"}
"""Options of sbatch that follow from the layout and the ranks per node."""

TEMPLATE: Final = """#!/bin/bash
{header}

# Written by mtnlg-parallel train --launcher slurm: starts an agent per node, again and again until the run is complete.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MTNLG_JOB=${{MTNLG_JOB:-$SLURM_JOB_ID}}
export OMP_NUM_THREADS=${{SLURM_CPUS_PER_TASK:-1}} SRUN_CPUS_PER_TASK=$((${{SLURM_CPUS_PER_TASK:-1}} * {tasks}))
export PYTHONUNBUFFERED=1
export NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=3 TORCH_FR_BUFFER_SIZE=2000
{setup}
mkdir -p {logs}

for ((restarts = 0; ; restarts++)); do
    export TORCHELASTIC_RESTART_COUNT=$restarts MASTER_PORT=$((10000 + (RANDOM << 15 | RANDOM) % 20000))
    MTNLG_SECRET=$(od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n')
    export MTNLG_SECRET
    rm -f {logs}/rank-*.failure
    srun {agents} {agent}
    status=$?
    if [ -e {summary} ]; then exit 0; fi
    verdict=requeue
    if [ "$status" -ne {stopped} ]; then
        verdict=$(timeout 600 srun {one} {restart} | tail -n 1)
    fi
    case $verdict in
        restart) continue ;;
        end) exit "$status" ;;
        "requeue "*)  # the same script again; where nodes may not submit, on any nodes
            sbatch --exclude="${{verdict#requeue }}"{excluded} --dependency=afterany:"$SLURM_JOB_ID",singleton "$0" &&
                exit "$status" ;;
    esac
    # Also where nobody could be asked: slurmctld may be away for a while.
    for ((tries = 0; tries < {tries}; tries++)); do
        scontrol requeue "$SLURM_JOB_ID" && break
        sleep 10
    done
    exit "$status"
done
"""


class Job(NamedTuple):
    """What a script runs, and where.

    ``arguments`` follow ``mtnlg-parallel train`` and make a process the agent of a node. Of the options of sbatch, the
    recipe's ``[slurm]`` table replaces ours, and ``sbatch``, from the command line, both.
    """

    recipe: Recipe
    arguments: Sequence[str]
    out: Path
    sbatch: Sequence[str] = ()
    ranks_per_node: int = 8
    device: Literal["auto", "cpu"] = "auto"
    max_restarts: int = 100

    @property
    def tasks_per_node(self) -> int:
        """Ranks on each node."""
        return min(self.ranks_per_node, self.recipe.layout.world)


def submit(job: Job) -> str:
    """Write ``job.out``/train.sbatch, submit it with sbatch, and return the job's number."""
    path = job.out / SCRIPT
    write_text(path, script(job))
    return slurm.submit(str(path), hint=f"{path} is written")


def script(job: Job) -> str:
    """The sbatch script. Raises ``UsageFailure`` where a value cannot stand in one."""
    recipe, out = job.recipe, job.out
    slurm.refuse_controls(str(out), *job.arguments, *recipe.slurm.setup)
    header = _sbatch_options(job)
    site = slurm.slurm_options("srun", _options(recipe.slurm.srun), "wait=300")
    one_task = {"ntasks-per-node": "1", **site}
    nodes = str(recipe.layout.world // job.tasks_per_node)
    agents = {"label": "", "nodes": nodes, "ntasks": nodes, "kill-on-bad-exit": "1", "wait": "60", **one_task}
    # On the node of this script, and without waiting for what a failed step still holds.
    one = {"overlap": "", "nodes": "1", "ntasks": "1", **one_task}
    command = [slurm.python_in(site), "-m", "mtnlg_parallel.cli"]
    return TEMPLATE.format(
        header=slurm.directives(header),
        tasks=job.tasks_per_node,
        setup="\n".join(recipe.slurm.setup),
        logs=shlex.quote(str(out / LOGS)),
        summary=shlex.quote(str(out / SUMMARY)),
        agents=_words(agents),
        agent=shlex.join([*command, "train", *job.arguments, f"--agent={job.tasks_per_node}"]),
        stopped=int(Exit.STOPPED),
        one=f'{_words(one)} --nodelist="$SLURMD_NODENAME"',
        restart=shlex.join([*command, "restart", str(out), "--max-restarts", str(job.max_restarts)]),
        excluded=shlex.quote(f",{header['exclude']}") if header.get("exclude") else "",
        tries=REQUEUE_TRIES,
    )


def _sbatch_options(job: Job) -> slurm.Options:
    layout, tasks = job.recipe.layout, job.tasks_per_node
    if layout.world % tasks:
        raise UsageFailure(f"--ranks-a-node {job.ranks_per_node} does not divide the {layout.world} ranks of {layout}")
    words = [*_options(job.recipe.slurm.sbatch), *job.sbatch]
    replacements = slurm.slurm_options("sbatch", words, "partition=batch")
    if fixed := sorted(FIXED & replacements.keys()):
        raise UsageFailure(f"--{fixed[0]} of sbatch follows from layout {layout} and --ranks-a-node; leave it out")
    ours: slurm.Options = {
        "job-name": f"mtnlg-{job.out.name}-{hashlib.sha256(bytes(job.out.resolve())).hexdigest()[:8]}",
        "dependency": "singleton",  # no two jobs train in one folder at once
        "nodes": str(layout.world // tasks),
        "ntasks-per-node": str(tasks),
        "gpus-per-node": str(tasks) if job.device != "cpu" else None,
        "cpus-per-task": str(CORES_PER_RANK),
        "mem": "0",  # all of a node's
        "exclusive": "",
        "time": "24:00:00",
        "signal": f"USR1@{WARNING_SECONDS}",
        "requeue": "",
        "open-mode": "append",
        "output": f"{str(job.out).replace('%', '%%')}/slurm-%j.log",
    }
    return {**ours, **replacements}


def _options(values: Mapping[str, str | int | bool]) -> list[str]:
    """A recipe's options of a Slurm command as words: True is a flag."""
    return [
        f"--{name}" if value is True else f"--{name}={'' if value is False else value}"
        for name, value in values.items()
    ]


def _words(options: slurm.Options) -> str:
    """Options as words of a bash command."""
    return shlex.join(f"--{name}={v}" if v else f"--{name}" for name, v in options.items() if v is not None)
