"""``watch``: scores each checkpoint of a run when it appears, in a separate process, into one folder of results.

A checkpoint has a lease (`mtnlg_model.checkpoint.lease`) while it is scored, so that the run does not remove it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from mtnlg_model.checkpoint.lease import lease
from mtnlg_model.checkpoint.manifest import MissingFileError, list_checkpoints
from mtnlg_model.console import Failure, say

from .report import write_report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def watch(
    run: Path, out: Path, words: Sequence[str], *, launch: str = "", seconds: float = 30.0, once: bool = False
) -> None:
    """Score the checkpoints of ``run`` into ``out``, oldest first, until the run is complete; ``once``: those present.

    ``words`` are options of ``mtnlg-eval run``; with ``--launcher slurm`` each scoring is a job, and this waits for it.
    ``launch`` is a command that runs a command, such as srun. The page in ``out`` is drawn after each checkpoint.
    ``seconds`` is the polling interval. Raises ``Failure`` at the end if a checkpoint could not be scored.
    """
    checkpoints = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    if not ((run / "recipe.toml").exists() or list_checkpoints(checkpoints)):
        raise Failure(f"{run}: no run, nor checkpoints; give the --out of mtnlg-parallel train")
    waits = ["--sbatch=--wait"] if "slurm" in (word.removeprefix("--launcher=") for word in words) else []
    scored: dict[Path, int] = {}
    while True:
        last = once or (run / "summary.json").exists()  # before the listing: its checkpoint is there
        new = [path for _, path in list_checkpoints(checkpoints) if path not in scored]
        for path in new[:1]:
            try:
                with lease(path) as held:
                    command = [
                        *shlex.split(launch),
                        sys.executable,
                        "-m",
                        "mtnlg_eval.cli",
                        "run",
                        str(path),
                        "--out",
                        str(out),
                    ]
                    scored[path] = subprocess.run(
                        [*command, *words, *waits], pass_fds=[held.fileno()], check=False
                    ).returncode
            except MissingFileError:
                continue
            if scored[path] == 0:
                say(f"{path.name}: scored; page in {write_report(out, show=False)}")
        if not new and last:
            break
        if not new:
            time.sleep(seconds)
    if failed := [f"{path.name} (status {status})" for path, status in scored.items() if status]:
        raise Failure(f"{len(failed)} of {len(scored)} checkpoints were not scored whole: {', '.join(failed)}")
