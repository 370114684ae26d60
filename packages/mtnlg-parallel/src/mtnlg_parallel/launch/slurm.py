"""A run as a Slurm job: the sbatch script that starts one task per rank and keeps the run going to its end.

    complete               the job ends
    stopped by a signal    the job is requeued: Slurm signals the ranks before the time limit and on preemption, and
                           they write a checkpoint and exit with status 0
    a rank failed          ``mtnlg-parallel restart`` reads what srun printed and decides: the ranks start again on
                           these nodes, or on a fresh allocation without those that failed twice, or the run ends
    a node is lost         Slurm itself requeues the job
    submitted again        the second job waits until the first has ended (`singleton`, by a name that is the folder's)

The ranks' store (`rendezvous`) gets a port and a secret of its own at each attempt, in the environment that srun passes
on. With a container the package exists only inside it, so the script itself is bash and Slurm's commands alone.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import signal
import subprocess
import sys
from shutil import which
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.files import write_text
from mtnlg_parallel.record.run_dir import LOGS, SUMMARY
from mtnlg_parallel.training.watchdog import HUNG_STATUS

from .local import PEER_FAILED
from .supervise import Failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

SCRIPT: Final = "train.sbatch"
WARNING_SECONDS: Final = 300
"""How long before the time limit Slurm signals the ranks: enough for a step and a checkpoint."""

CORES_PER_RANK: Final = 8
STEP_FAILED: Final = 73
"""Status of a failure that no rank reported: srun could not start the ranks, or lost a node."""

FIXED: Final = {"nodes", "ntasks", "ntasks-per-node"}
"""Options of sbatch that follow from the layout and the ranks per node."""

Options = dict[str, str | None]
"""Options of a Slurm command by name: "" is a flag, None takes one of ours away."""

TEMPLATE: Final = """#!/bin/bash
{header}

# Written by mtnlg-parallel train --launcher slurm: starts the ranks, again and again until the run is complete.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MTNLG_JOB=${{MTNLG_JOB:-$SLURM_JOB_ID}} WORLD_SIZE={world} LOCAL_WORLD_SIZE={tasks}
export OMP_NUM_THREADS=${{SLURM_CPUS_PER_TASK:-1}} SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-1}}
export PYTHONUNBUFFERED=1
export NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=3 TORCH_FR_BUFFER_SIZE=2000
{setup}
mkdir -p {logs}

for ((restarts = 0; ; restarts++)); do
    export TORCHELASTIC_RESTART_COUNT=$restarts MASTER_PORT=$((10000 + (RANDOM << 15 | RANDOM) % 20000))
    MTNLG_SECRET=$(od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n')
    export MTNLG_SECRET
    srun {ranks} bash -c {rank_command} 2>&1 | tee {log}
    status=${{PIPESTATUS[0]}}
    if [ -e {summary} ]; then exit 0; fi
    # Status 0 without a summary: a signal stopped the ranks, and they have written a checkpoint.
    verdict=requeue
    if [ "$status" -ne 0 ]; then
        verdict=$(timeout 600 srun {one} {restart} | tail -n 1)
    fi
    case $verdict in
        restart) ;;
        requeue) scontrol requeue "$SLURM_JOB_ID"; exit "$status" ;;
        "requeue "*)
            # The same script again; where nodes may not submit, on any nodes.
            sbatch --exclude="${{verdict#requeue }}"{excluded} --dependency=afterany:"$SLURM_JOB_ID",singleton "$0" ||
                scontrol requeue "$SLURM_JOB_ID"
            exit "$status" ;;
        *) exit "$status" ;;
    esac
done
"""


class Job(NamedTuple):
    """What a script runs, and where.

    ``arguments`` follow ``mtnlg-parallel train`` and make a process a rank. Of the options of sbatch, the recipe's
    ``[slurm]`` table replaces ours, and ``sbatch``, from the command line, both.
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
    sbatch = which("sbatch")
    if sbatch is None:
        raise Failure(f"{path} is written, but sbatch is not installed here; submit it where it is")
    result = subprocess.run([sbatch, "--parsable", str(path)], capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failure(f"sbatch {path}: {' '.join(result.stderr.split())}")
    return result.stdout.strip().split(";")[0]


def script(job: Job) -> str:
    """The sbatch script. Raises ``UsageFailure`` where a value cannot stand in one."""
    recipe, out = job.recipe, job.out
    for text in (str(out), *job.arguments, *recipe.slurm.setup):
        _refuse_controls(text)
    header = _sbatch_options(job)
    site = _without_removed(_replacements(recipe.slurm.srun))
    ranks = {"label": "", "distribution": "block", "kill-on-bad-exit": "1", "wait": "60", **site}
    # On the node of this script, and without waiting for what a failed step still holds.
    one = {"overlap": "", "nodes": "1", "ntasks": "1", "ntasks-per-node": "1", **site}
    # A container has a Python of its own.
    python = "python3" if any(name.startswith("container") for name in site) else sys.executable
    command = [python, "-m", "mtnlg_parallel.cli"]
    variables = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID GROUP_RANK=$SLURM_NODEID"
    log = out / LOGS / "srun.log"
    return TEMPLATE.format(
        header="\n".join(f"#SBATCH {_directive(name, value)}" for name, value in header.items()),
        world=recipe.layout.world,
        tasks=job.tasks_per_node,
        setup="\n".join(recipe.slurm.setup),
        logs=shlex.quote(str(log.parent)),
        log=shlex.quote(str(log)),
        summary=shlex.quote(str(out / SUMMARY)),
        ranks=_words(ranks),
        rank_command=shlex.quote(f"export {variables}; exec {shlex.join([*command, 'train', *job.arguments])}"),
        one=f'{_words(one)} --nodelist="$SLURMD_NODENAME"',
        restart=shlex.join([*command, "restart", str(out), "--log", str(log), "--max-restarts", str(job.max_restarts)]),
        excluded=shlex.quote(f",{header['exclude']}") if "exclude" in header else "",
    )


def _sbatch_options(job: Job) -> dict[str, str]:
    layout, tasks = job.recipe.layout, job.tasks_per_node
    if layout.world % tasks:
        raise UsageFailure(f"--ranks-a-node {job.ranks_per_node} does not divide the {layout.world} ranks of {layout}")
    replacements = _replacements(job.recipe.slurm.sbatch)
    for option in job.sbatch:
        name, equals, value = option.removeprefix("--").partition("=")
        if not option.startswith("--"):
            raise UsageFailure(f"--sbatch {option}: write an option of sbatch, such as --sbatch=--partition=batch")
        replacements |= _replacements({name: value if equals else True})
    if fixed := sorted(FIXED & replacements.keys()):
        raise UsageFailure(f"--{fixed[0]} of sbatch follows from layout {layout} and --ranks-a-node; leave it out")
    ours: Options = {
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
    return _without_removed({**ours, **replacements})


def _replacements(values: Mapping[str, str | int | bool]) -> Options:
    """Options as a recipe or a command line gives them: True is a flag; False, "false" and "" remove an option."""
    for name, value in values.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise UsageFailure(f"{name!r} is no option of Slurm; write its long name, such as partition")
        _refuse_controls(str(value))
    return {
        name: "" if value is True else None if value is False or value in {"", "false"} else str(value)
        for name, value in values.items()
    }


def _without_removed(options: Options) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse_controls(text: str) -> None:
    """A line break would start another line of the script, and a control character could hide one."""
    if not text.isprintable():
        raise UsageFailure(f"{text!r}: a control character or line break cannot stand in {SCRIPT}; take it out")


def _directive(name: str, value: str) -> str:
    """An option on a line of #SBATCH: Slurm knows double quotes, with backslashes before quotes and backslashes."""
    if re.fullmatch(r"[\w@%+=:,./-]*", value, re.ASCII):
        return f"--{name}={value}" if value else f"--{name}"
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'--{name}="{escaped}"'


def _words(options: dict[str, str]) -> str:
    """Options as words of a bash command."""
    return shlex.join(f"--{name}={value}" if value else f"--{name}" for name, value in options.items())


class _Ended(NamedTuple):
    """What srun prints of ranks that ended alike: nodes, such as n[1-4], numbers, such as 0-2,7, and how they ended."""

    nodes: str
    ranks: str
    end: str

    @property
    def node(self) -> str:
        """The one node; empty where there are several."""
        return self.nodes if re.fullmatch(r"[\w.-]+", self.nodes, re.ASCII) else ""

    @property
    def first_rank(self) -> int:
        return int(re.split("[,-]", self.ranks)[0])

    @property
    def status(self) -> int:
        """The exit status by "Exited with exit code 1", "Killed" or "Aborted (core dumped)"."""
        code = re.match(r"Exited with exit code (\d+)", self.end)
        return int(code[1]) if code else _STATUS_BY_SIGNAL.get(self.end.partition(" (")[0], STEP_FAILED)

    def includes(self, rank: int) -> bool:
        bounds = [part.split("-") for part in self.ranks.split(",")]
        return any(int(bound[0]) <= rank <= int(bound[-1]) for bound in bounds)


_ENDED = re.compile(r"srun: error: ([\w.,\[\]-]+): tasks? (\d+(?:[,-]\d+)*): (.*\S)", re.ASCII)
_NODE_FAILED = re.compile(r"srun: error: .*(?:Node failure on|failed on node) ([\w.-]+)", re.ASCII)
_OUTPUT = re.compile(r"\s*(\d+): (?!slurmstepd)(?:cli\.py: )?(.*\S)", re.ASCII)
_NAMED_RANK = re.compile(r"\brank (\d+) \(", re.ASCII)
_STATUS_BY_SIGNAL = {signal.strsignal(number): 128 + number for number in signal.Signals}
_LONGEST_LINE = 10_000


def first_failure(log: Path) -> Failed:
    """How the rank failed that failed first by ``log``, which holds what ``srun --label`` printed.

    srun names the node and the end of every rank that fails, and ends the others after the first. A rank that only lost
    another one counts as first where nothing else is known. A hang is the fault of the rank that its peers name.
    """
    ended: list[_Ended] = []
    by_themselves: int | None = None  # how many of them ended before srun ended the others
    last_lines: dict[int, str] = {}
    bad_node, error = "", "srun started no rank"
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in iter(lambda: file.readline(_LONGEST_LINE), ""):
            if match := _OUTPUT.match(line):
                last_lines[int(match[1])] = match[2]
            elif match := _ENDED.match(line):
                ended.append(_Ended(*match.groups()))
            elif match := _NODE_FAILED.match(line):
                bad_node, error = match[1], line.strip()
            elif line.startswith("srun: error: ") and not bad_node:
                error = line.strip()
            elif "Terminating StepId" in line and by_themselves is None:
                by_themselves = len(ended)
    if bad_node or not ended[:by_themselves]:
        return Failed(error, STEP_FAILED, bad_node)
    first = min(ended[:by_themselves], key=lambda ranks: ranks.status == PEER_FAILED)
    last_line = last_lines.get(first.first_rank, "")
    if first.status == HUNG_STATUS:
        nodes = {ranks.node for rank in _NAMED_RANK.findall(last_line) for ranks in ended if ranks.includes(int(rank))}
        return Failed(last_line, HUNG_STATUS, nodes.pop() if len(nodes) == 1 else "")
    reason = f"rank {first.first_rank} on {first.nodes}: {first.end[0].lower()}{first.end[1:]}"
    if last_line and first.end != "Killed":  # it had no time to say why
        reason = f"{reason}: {last_line}"
    return Failed(reason, first.status, "" if first.status == PEER_FAILED else first.node)
