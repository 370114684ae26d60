"""What a curation takes, stage by stage, as the kernel counts it: seconds, processor seconds, memory.

This module, run as a program, is the driver's start: before the ``stage.json`` of a stage is renamed into place, an
audit hook there appends to a file what the driver and its workers have taken since the stage before. Memory is VmHWM,
the kernel's own peak of resident bytes (mapped files included), set back at the end of each stage. Of libraries the
kernel maps whatever its cache holds near a page that is read, 80 MB more just after an installation: the share
``LIBRARY_SHARE`` of them is counted instead. Workers live until the run ends.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

RECORD = "stage.json"
DISK_PAUSE = 10.0  # seconds between two looks at the disk
LIBRARY_SHARE = (
    0.4  # of a shared library's bytes: a process has mapped 0.3 to 0.42 where the cache was cold, 0.5 to 0.55
)


class StageCost(NamedTuple):
    """What one stage took."""

    seconds: float
    cpu_seconds: float
    driver_bytes: int  # peak memory
    worker_bytes: int  # of the worker that took most


class RunCost(NamedTuple):
    """What a run took."""

    stages: dict[str, StageCost]
    disk_bytes: int  # peak


def watch_run(command: list[str], out: Path) -> RunCost:
    """Run a Python script and its arguments as the driver of a run into ``out``; a failure ends this process."""
    record = out.with_name(f"{out.name}.stages.jsonl")
    record.unlink(missing_ok=True)
    process, disk = subprocess.Popen([sys.executable, __file__, str(record), *command]), 0
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(DISK_PAUSE)
        disk = max(disk, folder_bytes(out))
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with status {process.returncode}")
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return RunCost({name: StageCost(*cost) for name, *cost in lines}, disk)


def record_stages(record: Path) -> None:
    """In the driver: append a line per stage."""
    since = [time.monotonic(), 0.0]

    def hook(event: str, values: tuple[object, ...]) -> None:
        if event != "os.rename" or (path := Path(str(values[1]))).name != RECORD:
            return
        driver = psutil.Process()
        workers = driver.children(recursive=True)
        used = sum(os.times()[:4]) + sum(sum(worker.cpu_times()[:2]) for worker in workers)
        now = [time.monotonic(), used]
        seconds = [round(end - begin, 3) for end, begin in zip(now, since, strict=True)]
        peaks = peak_bytes(driver), max(map(peak_bytes, workers), default=0)
        for process in (driver, *workers):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps([path.parent.name.partition("-")[2] or "tokenize", *seconds, *peaks]) + "\n")
        since[:] = now

    sys.addaudithook(hook)


def peak_bytes(process: psutil.Process) -> int:
    """Peak resident bytes of a process; of its shared libraries, of their files alone, ``LIBRARY_SHARE``."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    mappings = process.memory_maps(grouped=False)
    libraries = [each for each in mappings if ".so" in each.path and each.perms.startswith("r")]
    counted_anew: float = sum(LIBRARY_SHARE * each.size + each.anonymous - each.rss for each in libraries)
    return 1024 * int(fields["VmHWM"].split()[0]) + round(counted_anew)


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder and its folders."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


if __name__ == "__main__":
    record_stages(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
