"""Jobs of the real Slurm on this machine (``slurm_daemons``): submitted, awaited, and robbed of a node."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 300
"""Seconds for which a test waits for anything."""


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


class Job:
    """A job that a command of ours submits; its logs are files of a folder."""

    def __init__(self, command: list[str], folder: Path, logs: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        self.number = done.stderr.split(" as job ")[1].split(";")[0]
        self._folder, self._logs = folder, logs

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for the condition."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"the condition did not come true; {output('squeue')}{self.log()}"
            time.sleep(0.05)

    def has_ended(self) -> bool:
        """Whether no job is pending, running or completing."""
        return not output("squeue", "--noheader")

    def until_ended(self) -> None:
        """Wait for its end, and for that of those that took its place."""
        self.until(self.has_ended)

    def fact(self, name: str) -> str:
        """What Slurm says of it: its JobState, its StartTime and EndTime."""
        return output("scontrol", "show", "job", self.number).split(f" {name}=")[1].split()[0]

    def log(self) -> str:
        """What it has printed, the first of several jobs first."""
        logs = sorted(self._folder.glob(self._logs), key=lambda path: (len(path.name), path.name))
        return "".join(path.read_text() for path in logs)


def processes(node: str, *variables: str, line: str = "") -> list[int]:
    """The processes of this Slurm's jobs on a node with these variables and words of a command line, sorted."""
    wanted = {f"SLURMD_NODENAME={node}", f"SLURM_CONF={os.environ['SLURM_CONF']}", *variables}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = set((folder / "environ").read_text(errors="replace").split("\0"))
            command = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
            if wanted <= environment and line in command:
                found.append(int(folder.name))
    return sorted(found)


def parent(process: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def lost(node: str, daemons: Path) -> Iterator[None]:
    """Lose a node for a while: its daemon, those of its steps and their processes end, and Slurm is told."""
    pids = processes(node)
    steps = {step for step in map(parent, pids) if Path(f"/proc/{step}/comm").read_text() == "slurmstepd\n"}
    for pid in (int((daemons / f"slurmd-{node}.pid").read_text()), *steps, *pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # As slurmctld does when a node has not answered for SlurmdTimeout.
    output("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
    yield
    output("slurmd", "-N", node)
