"""Writes the sbatch script of a job: a training, or any other program whose ranks srun starts, such as scoring.

A training has one agent per node, and is restarted until it is complete:

    complete               the job ends
    stopped by a signal    the job is requeued: Slurm signals the agents before the time limit and on preemption, and
                           their ranks write a checkpoint and exit with `Exit.STOPPED`
    a rank failed          ``mtnlg-parallel restart`` reads the failure files and decides: the ranks start again on
                           these nodes, or on a fresh allocation without those that failed twice, or the run ends
    restart itself fails   the job is requeued as soon as slurmctld answers
    a node is lost         Slurm itself requeues the job
    fewer nodes are free   with ``elastic`` the job starts on those, at a smaller ``dp``; a later start may get all
    submitted again        the second job waits until the first has ended (`singleton`, by a job name from the folder)

Any other program is started once. Before the time limit the job is requeued, and the same command continues its work.

The ranks' store (`rendezvous`) gets a new port and secret at each attempt, through the environment that srun passes on.
With a container the package exists only inside it, so the script itself uses only bash and Slurm's commands.
"""

from __future__ import annotations

import hashlib
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_data.engine import slurm
from mtnlg_model.console import UsageFailure, say
from mtnlg_model.files import write_text
from mtnlg_parallel.record.run_dir import LOGS, SUMMARY
from mtnlg_parallel.statuses import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Recipe, Slurm

WARNING_SECONDS: Final = 300
"""Seconds before the time limit at which Slurm signals the ranks: enough for a step and a checkpoint."""

CORES_PER_RANK: Final = 8
REQUEUE_TRIES: Final = 60
"""Tries to requeue a job, one every 10 s, while slurmctld does not answer."""

FIXED: Final = {"nodes", "ntasks", "ntasks-per-node"}
"""Options of sbatch that the layout and the ranks per node determine."""

HEAD: Final = r"""#!/bin/bash
{header}

# Written by {program} --launcher slurm.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=${{SLURM_CPUS_PER_TASK:-1}} SRUN_CPUS_PER_TASK=$((${{SLURM_CPUS_PER_TASK:-1}} * {ranks_a_task}))
export PYTHONUNBUFFERED=1
export NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=3 TORCH_FR_BUFFER_SIZE=2000
{setup}

meet() {{  # the next attempt's ranks at a store of their own
    MASTER_PORT=$((10000 + (RANDOM << 15 | RANDOM) % 20000))
    MTNLG_SECRET=$(od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n')
    export MASTER_PORT MTNLG_SECRET
}}
requeue() {{  # slurmctld may be away for a while
    for ((tries = 0; tries < {tries}; tries++)); do
        scontrol requeue "$SLURM_JOB_ID" && break
        sleep 10
    done
}}
"""
TRAIN: Final = """
# An agent per node, again and again until the run is complete.
{nodes}
export MTNLG_JOB=${{MTNLG_JOB:-$SLURM_JOB_ID}}
mkdir -p {logs}
for ((restarts = 0; ; restarts++)); do
    meet
    export TORCHELASTIC_RESTART_COUNT=$restarts
    rm -f {logs}/rank-*.failure
    srun --nodes="$nodes" --ntasks="$nodes" {agents} {agent}
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
    requeue  # also where nobody could be asked
    exit "$status"
done
"""
ONCE: Final = """
trap requeue USR1
meet
srun {ranks} {command} &
wait $!
"""


class Job(NamedTuple):
    """The ranks of a job, and where they run.

    The recipe's ``[slurm]`` table overrides our options of sbatch and srun; ``sbatch`` and ``srun``, from the command
    line, override both.
    """

    program: str
    out: Path
    layout: Layout
    table: Slurm
    sbatch: Sequence[str] = ()
    srun: Sequence[str] = ()
    ranks_per_node: int = 8
    device: Literal["auto", "cpu"] = "auto"

    @property
    def tasks_per_node(self) -> int:
        """Ranks on each node."""
        return min(self.ranks_per_node, self.layout.world)

    @property
    def nodes(self) -> int:
        """Number of nodes. Raises ``UsageFailure`` if the ranks do not fill them."""
        if self.layout.world % self.tasks_per_node:
            ranks = f"--ranks-per-node {self.ranks_per_node}"
            raise UsageFailure(f"{ranks} does not divide the {self.layout.world} ranks of {self.layout}")
        return self.layout.world // self.tasks_per_node

    @property
    def site(self) -> slurm.Options:
        """The site's options of srun."""
        return slurm.slurm_options("srun", [*_options(self.table.srun), *self.srun], "wait=300")

    @property
    def script(self) -> Path:
        """Path of the script that is submitted."""
        return self.out / f"{self.program.split()[-1]}.sbatch"


def submit(job: Job, script: str) -> str:
    """Write the job's script, submit it with sbatch, and return the job's number."""
    write_text(job.script, script)
    number = slurm.submit(str(job.script), hint=f"{job.script} is written")
    say(f"submitted {job.script} as job {number}; squeue --job {number} shows it")
    return number


def training_script(
    job: Job, arguments: Sequence[str], max_restarts: int = 100, fit: Callable[[int], Recipe] | None = None
) -> str:
    """The script of a training. Raises ``UsageFailure`` if a value cannot be written into a script.

    ``arguments`` follow ``mtnlg-parallel train`` and make a process the agent of a node. With ``fit`` the job also
    accepts fewer nodes: it returns the recipe for a number of ranks, or raises ``UsageFailure`` if they are too few.
    """
    out, tasks = job.out, job.tasks_per_node
    in_use = _nodes_in_use(job, fit) if fit else [job.nodes]
    least, most = next(filter(None, in_use)), in_use[-1]
    ours: slurm.Options = {"signal": f"USR1@{WARNING_SECONDS}"}
    if least < most:  # tasks would make Slurm take the fewest nodes
        ours |= {"nodes": f"{least}-{most}", "ntasks-per-node": None}
    header = _header(job, ours)
    if least < most and (cores := header["cpus-per-task"] or "").isdecimal():
        header.setdefault("mincpus", str(tasks * int(cores)))
    one_task = {"ntasks-per-node": "1", **job.site}
    agents = {"label": "", "relative": "0", "kill-on-bad-exit": "1", "wait": "60", **one_task}
    # Run on the script's own node, without waiting for resources that a failed step still holds.
    one = {"overlap": "", "nodes": "1", "ntasks": "1", **one_task}
    command = [slurm.python_in(job.site), "-m", "mtnlg_parallel.cli"]
    nodes = f"in_use=({' '.join(map(str, in_use))})\nnodes=${{in_use[$SLURM_JOB_NUM_NODES]}}"
    return _head(job, header, tasks, arguments) + TRAIN.format(
        nodes=nodes if least < most else f"nodes={most}",
        logs=shlex.quote(str(out / LOGS)),
        summary=shlex.quote(str(out / SUMMARY)),
        agents=_words(agents),
        agent=shlex.join([*command, "train", *arguments, f"--agent={tasks}"]),
        stopped=int(Exit.STOPPED),
        one=f'{_words(one)} --nodelist="$SLURMD_NODENAME"',
        restart=shlex.join([*command, "restart", str(out), "--max-restarts", str(max_restarts)]),
        excluded=shlex.quote(f",{header['exclude']}") if header.get("exclude") else "",
    )


def script_of_ranks(job: Job, module: str, arguments: Sequence[str]) -> str:
    """The script that runs ``python -m module`` with these arguments on each rank; raises as `training_script`."""
    header = _header(job, {"signal": f"B:USR1@{WARNING_SECONDS}"})
    placed = {"nodes": header["nodes"], "ntasks": str(job.layout.world), "ntasks-per-node": header["ntasks-per-node"]}
    return _head(job, header, 1, arguments) + ONCE.format(
        ranks=_words({"label": "", **placed, "kill-on-bad-exit": "1", **job.site}),
        command=shlex.join([slurm.python_in(job.site), "-m", module, *arguments]),
    )


def _nodes_in_use(job: Job, fit: Callable[[int], Recipe]) -> list[int]:
    """Nodes used, indexed by nodes available; 0 if those are too few. Raises as ``fit`` if all nodes are too few."""
    fit(job.layout.world)
    tasks, used = job.tasks_per_node, [0] * (job.nodes + 1)
    for nodes in range(len(used)):
        with suppress(UsageFailure):
            used[nodes] = -(-fit(nodes * tasks).layout.world // tasks)
    return used


def _head(job: Job, header: slurm.Options, ranks_a_task: int, arguments: Sequence[str]) -> str:
    slurm.refuse_controls(str(job.out), *arguments, *job.table.setup)
    return HEAD.format(
        header=slurm.directives(header),
        program=job.program,
        ranks_a_task=ranks_a_task,
        setup="\n".join(job.table.setup),
        tries=REQUEUE_TRIES,
    )


def _header(job: Job, ours: slurm.Options) -> slurm.Options:
    """Options of sbatch by name: ours, and those that override them."""
    words = [*_options(job.table.sbatch), *job.sbatch]
    replacements = slurm.slurm_options("sbatch", words, "partition=batch")
    if fixed := sorted(FIXED & replacements.keys()):
        raise UsageFailure(
            f"--{fixed[0]} of sbatch follows from layout {job.layout} and --ranks-per-node; leave it out"
        )
    tasks = str(job.tasks_per_node)
    return {
        "job-name": f"mtnlg-{job.out.name}-{hashlib.sha256(bytes(job.out.resolve())).hexdigest()[:8]}",
        "dependency": "singleton",  # no two jobs write into one folder at once
        "nodes": str(job.nodes),
        "ntasks-per-node": tasks,
        "gpus-per-node": tasks if job.device != "cpu" else None,
        "cpus-per-task": str(CORES_PER_RANK),
        "mem": "0",  # all of a node's
        "exclusive": "",
        "time": "24:00:00",
        "requeue": "",
        "open-mode": "append",
        "output": f"{str(job.out).replace('%', '%%')}/slurm-%j.log",
        **ours,
        **replacements,
    }


def _options(values: Mapping[str, str | int | bool]) -> list[str]:
    """A recipe's options of a Slurm command as arguments; True makes a flag."""
    return [
        f"--{name}" if value is True else f"--{name}={'' if value is False else value}"
        for name, value in values.items()
    ]


def _words(options: slurm.Options) -> str:
    """Options as quoted arguments of a bash command."""
    return shlex.join(f"--{name}={v}" if v else f"--{name}" for name, v in options.items() if v is not None)
