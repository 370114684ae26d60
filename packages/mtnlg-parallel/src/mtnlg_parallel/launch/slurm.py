"""Submits a run as a Slurm job: an sbatch script, written into the run directory, that starts one task per rank.

Slurm signals the ranks before the time limit and on preemption. They write a checkpoint and exit with status 0; the
script then finds the run incomplete and requeues the job, which resumes. A rank that fails ends the job.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from shutil import which
from typing import TYPE_CHECKING, Final

from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.files import write_text
from mtnlg_parallel.record.run_dir import SUMMARY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_parallel.layout import Layout

SCRIPT: Final = "train.sbatch"
WARNING_SECONDS: Final = 300
"""How long before the time limit Slurm signals the ranks: enough for a step and a checkpoint."""

TEMPLATE: Final = """#!/bin/bash
{header}

# Written by mtnlg-parallel train --launcher slurm.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export WORLD_SIZE=$SLURM_NTASKS
srun --kill-on-bad-exit=1 bash -c {rank_command}
status=$?
# Status 0 without a summary: a signal stopped the ranks, and they have written a checkpoint.
if [ "$status" -eq 0 ] && [ ! -e {summary} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def submit(
    layout: Layout, arguments: Sequence[str], out: Path, sbatch_options: Sequence[str], ranks_per_node: int
) -> str:
    """Write ``out``/train.sbatch, submit it with sbatch, and return the job's number."""
    path = out / SCRIPT
    write_text(path, script(layout, arguments, out, sbatch_options, ranks_per_node))
    sbatch = which("sbatch")
    if sbatch is None:
        raise Failure(f"{path} is written, but sbatch is not installed here; submit it where it is")
    result = subprocess.run([sbatch, "--parsable", str(path)], capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failure(f"sbatch {path}: {' '.join(result.stderr.split())}")
    return result.stdout.strip().split(";")[0]


def script(
    layout: Layout, arguments: Sequence[str], out: Path, sbatch_options: Sequence[str], ranks_per_node: int
) -> str:
    """The sbatch script that runs ``mtnlg-parallel train`` with ``arguments``; ``sbatch_options`` override ours."""
    directives = _directives(layout, out, sbatch_options, ranks_per_node)
    train = shlex.join([sys.executable, "-m", "mtnlg_parallel.cli", "train", *arguments])
    options = (f"{name}={value}" if value else name for name, value in directives.items())
    return TEMPLATE.format(
        header="\n".join(f"#SBATCH {option}" for option in options),
        rank_command=shlex.quote(f"export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec {train}"),
        summary=shlex.quote(str(out / SUMMARY)),
    )


def _directives(layout: Layout, out: Path, sbatch_options: Sequence[str], ranks_per_node: int) -> dict[str, str]:
    tasks = min(ranks_per_node, layout.world)
    if layout.world % tasks:
        raise UsageFailure(f"--ranks-a-node {ranks_per_node} does not divide the {layout.world} ranks of {layout}")
    directives = {
        "--job-name": f"mtnlg-{out.name}",
        "--nodes": str(layout.world // tasks),
        "--ntasks-per-node": str(tasks),
        "--time": "24:00:00",
        "--signal": f"USR1@{WARNING_SECONDS}",
        "--requeue": "",
        "--open-mode": "append",
        "--output": str(out / "slurm-%j.log"),
    }
    for option in sbatch_options:
        name, _, value = option.partition("=")
        if not name.startswith("--"):
            raise UsageFailure(f"--sbatch {option}: write an option of sbatch, such as --sbatch=--partition=batch")
        directives[name] = value
    return directives
