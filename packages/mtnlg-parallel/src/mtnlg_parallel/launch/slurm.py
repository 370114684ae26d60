"""The same run as a Slurm job: an sbatch script that starts one task a rank, written beside the run and submitted.

Before its time is up, and when it is preempted, Slurm signals every rank; they write a checkpoint and end well, and the
script, finding the run incomplete, puts the job back into the queue, where it goes on. A rank that dies ends the step.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from shutil import which
from typing import TYPE_CHECKING, Final

from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.files import write_text
from mtnlg_parallel.training.run_dir import SUMMARY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_parallel.layout import Layout

SCRIPT: Final = "train.sbatch"
WARNING_SECONDS: Final = 300
"""How long before its end Slurm warns the ranks: a step and a checkpoint must fit in."""


def submit(layout: Layout, words: Sequence[str], out: Path, options: Sequence[str], ranks_a_node: int) -> str:
    """Write ``out``/train.sbatch and hand it to sbatch; the job's number. Raises ``Failure`` where that fails."""
    path = out / SCRIPT
    write_text(path, script(layout, words, out, options, ranks_a_node))
    sbatch = which("sbatch")
    if sbatch is None:
        raise Failure(f"{path} is written, but there is no sbatch here to submit it to; do so where there is")
    done = subprocess.run([sbatch, "--parsable", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"sbatch {path}: {' '.join(done.stderr.split())}")
    return done.stdout.strip().split(";")[0]


def script(layout: Layout, words: Sequence[str], out: Path, options: Sequence[str], ranks_a_node: int) -> str:
    """The script; ``words`` follow ``mtnlg-parallel train``, ``options`` are sbatch's own and win over those here."""
    here = min(ranks_a_node, layout.world)
    if layout.world % here:
        raise UsageFailure(f"--ranks-a-node {ranks_a_node} does not divide the {layout.world} ranks of {layout}")
    chosen = {
        "--job-name": f"mtnlg-{out.name}",
        "--nodes": str(layout.world // here),
        "--ntasks-per-node": str(here),
        "--time": "24:00:00",
        "--signal": f"USR1@{WARNING_SECONDS}",
        "--requeue": "",
        "--open-mode": "append",
        "--output": str(out / "slurm-%j.log"),
    }
    for option in options:
        name, _, value = option.partition("=")
        if not name.startswith("--"):
            raise UsageFailure(f"--sbatch {option}: write an option of sbatch, such as --sbatch=--partition=batch")
        chosen[name] = value
    header = "\n".join(f"#SBATCH {name}{'=' if value else ''}{value}" for name, value in chosen.items())
    command = shlex.join([sys.executable, "-m", "mtnlg_parallel.cli", "train", *words])
    rank = f"export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec {command}"
    return f"""#!/bin/bash
{header}

# Written by mtnlg-parallel train --launcher slurm.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export WORLD_SIZE=$SLURM_NTASKS
srun --kill-on-bad-exit=1 bash -c {shlex.quote(rank)}
status=$?
# Ended well and not complete: the ranks were asked to stop, and have written a checkpoint.
if [ "$status" -eq 0 ] && [ ! -e {shlex.quote(str(out / SUMMARY))} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""
