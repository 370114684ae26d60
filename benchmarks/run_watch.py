"""What a curation takes, stage by stage, seen from outside: seconds, memory and disk by /proc, file opens by inotify.

A stage ends when its ``stage.json`` is about to be renamed into place. This module, run as a program, is the driver's
start: an audit hook there announces each such rename and waits until the watch has looked, so that what a stage opened
and took is its own however late the watch comes. Memory is VmHWM, the kernel's own peak of resident bytes (mapped files
included), set back at the end of each stage. Of libraries the kernel maps whatever its cache holds near a page that is
read, 80 MB more just after an installation: the share ``LIBRARY_SHARE`` of them is counted instead. Processor seconds
are those of all processes that this one has started, killed ones too. Only the last ``PAUSE`` seconds of a process can
escape.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

IN_OPEN, IN_CREATE, IN_MOVED_TO, IN_CLOSE = 0x20, 0x100, 0x80, 0x18  # closes keep two opens of a file from merging
IN_OVERFLOW, IN_DIRECTORY = 0x4000, 0x40000000
EVENT = struct.Struct("iIII")
RECORD = "stage.json"
NAME_BYTES = 255  # the longest name of a folder
PAUSE, DISK_PAUSE = 0.2, 10.0  # seconds between two looks at the processes, at the disk
TICKS = os.sysconf("SC_CLK_TCK")
LIBRARY_SHARE = (
    0.4  # of a shared library's bytes: a process has mapped 0.3 to 0.42 where the cache was cold, 0.5 to 0.55
)


class StageCost(NamedTuple):
    """What one stage took."""

    seconds: float
    cpu_seconds: float
    driver_bytes: int  # peak memory
    worker_bytes: int  # of the worker that took most
    opens: int  # of files


class RunWatch:
    """Watches a run: the folders that it reads and writes, and the processes that this one starts."""

    def __init__(self, raw: Path, out: Path) -> None:
        self.stages: dict[str, StageCost] = {}
        self._opened = 0  # in the stage at work
        self.disk_bytes = 0  # peak
        self.lost = False  # the kernel's queue of events was full
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK)
        self._folders: dict[int, Path] = {}
        self._out = out
        out.mkdir(parents=True, exist_ok=True)
        self._add(raw)
        self._add(out)
        self._driver = 0
        self._announced, self._announces = socket.socketpair()
        self._peaks = (0, 0)  # of the driver, of any worker
        self._libraries: dict[int, tuple[int, float]] = {}  # a process's peak, and what of it is not counted
        self._ticks: dict[tuple[int, str], int] = {}  # of each process that was ever seen, by id and start
        self._since = time.monotonic(), 0.0
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._look)]

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Begin, with this Python script and its arguments as the driver of the run."""
        ours = self._announces.fileno()
        process = subprocess.Popen([sys.executable, __file__, str(ours), *command], pass_fds=[ours])
        self._driver = process.pid
        for thread in self._threads:
            thread.start()
        return process

    def stop(self) -> None:
        """End; the run has ended."""
        self._end.set()
        for thread in self._threads:
            thread.join()
        os.close(self._queue)
        self._announced.close()
        self._announces.close()

    def _add(self, folder: Path) -> None:
        mask = IN_OPEN | IN_CLOSE | IN_CREATE | IN_MOVED_TO
        number = self._libc.inotify_add_watch(self._queue, os.fsencode(folder), mask)
        if number < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))
        self._folders[number] = folder
        for inner in filter(Path.is_dir, folder.iterdir()):
            self._add(inner)

    def _read(self) -> None:
        while not self._end.is_set():
            readable = select.select([self._queue, self._announced], [], [], PAUSE)[0]
            with suppress(BlockingIOError):
                while True:  # what a stage has opened was queued before it announced its end
                    self._take(os.read(self._queue, 1 << 20))
            if self._announced in readable:
                self._finish(self._announced.recv(NAME_BYTES).decode().partition("-")[2])
                self._announced.send(b".")

    def _take(self, events: bytes) -> None:
        place = 0
        while place < len(events):
            number, mask, _, length = EVENT.unpack_from(events, place)
            place += EVENT.size + length
            if mask & IN_OVERFLOW:
                self.lost = True
                continue
            file = events[place - length : place].rstrip(b"\0").decode(errors="replace")
            if mask & IN_DIRECTORY:
                if mask & (IN_CREATE | IN_MOVED_TO):
                    with suppress(OSError):  # it has gone again
                        self._add(self._folders[number] / file)
            elif mask & IN_OPEN:
                self._opened += 1

    def _finish(self, stage: str) -> None:
        self._look_at_processes(reset=True)
        now = time.monotonic(), sum(self._ticks.values()) / TICKS
        self.stages[stage] = StageCost(now[0] - self._since[0], now[1] - self._since[1], *self._peaks, self._opened)
        self._since, self._peaks, self._opened = now, (0, 0), 0

    def _look(self) -> None:
        disk_at = 0.0
        while not self._end.wait(PAUSE):
            self._look_at_processes()
            if time.monotonic() >= disk_at:
                self.disk_bytes = max(self.disk_bytes, folder_bytes(self._out))
                disk_at = time.monotonic() + DISK_PAUSE
        self.disk_bytes = max(self.disk_bytes, folder_bytes(self._out))

    def _look_at_processes(self, *, reset: bool = False) -> None:
        own = command(self._driver)
        workers = {process for process in descendants(self._driver) if command(process) != own}  # else before its exec
        for process in descendants(os.getpid()):
            with suppress(OSError):
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                self._ticks[process, stat[19]] = int(stat[11]) + int(stat[12])
                fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
                if process in workers or process == self._driver:
                    peak = 1024 * int(fields.get("VmHWM", "0 kB").split()[0])
                    if self._libraries.get(process, (0, 0))[0] != peak:
                        self._libraries[process] = peak, uncounted_bytes(process)
                    peak -= round(self._libraries[process][1])
                    driver, worker = self._peaks
                    is_driver = process == self._driver
                    self._peaks = (max(driver, peak), worker) if is_driver else (driver, max(worker, peak))
                    if reset:
                        Path(f"/proc/{process}/clear_refs").write_text("5")


def command(process: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def uncounted_bytes(process: int) -> float:
    """Resident bytes of a process's shared libraries, of their files alone, beyond ``LIBRARY_SHARE``."""
    total, is_library = 0.0, False
    counted = {"Rss": 1.0, "Anonymous": -1.0, "Size": -LIBRARY_SHARE}
    for line in Path(f"/proc/{process}/smaps").read_text(encoding="utf-8").splitlines():
        field, _, value = line.partition(":")
        if not line[:1].isupper():  # a mapping: its addresses, permissions, file
            is_library = ".so" in line and line.split()[1].startswith("r")
        elif is_library and field in counted:
            total += counted[field] * 1024 * int(value.split()[0])
    return total


def descendants(process: int) -> Iterator[int]:
    """The processes that a process has started, and that these have started."""
    with suppress(OSError):  # it has just ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from descendants(child)


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder and its folders."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def announce_stages(to: socket.socket) -> None:
    """In the driver: before the record of a stage is renamed into place, send the stage's folder and wait."""

    def hook(event: str, values: tuple[object, ...]) -> None:
        if event == "os.rename" and (record := Path(str(values[1]))).name == RECORD:
            to.sendall(record.parent.name.replace("tokens", "06-tokenize").encode())
            to.recv(1)

    sys.addaudithook(hook)


if __name__ == "__main__":
    announce_stages(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
