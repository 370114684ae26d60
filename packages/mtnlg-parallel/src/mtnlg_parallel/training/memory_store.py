"""Where copies of a run's state lie in the memory of its nodes, and how a resumed run finds and fetches them.

    /dev/shm/mtnlg-UID-HASH/            of one user and one --out, on each node; $MTNLG_MEMORY_DIR instead of /dev/shm
        RUN-ATTEMPT/                    of one run and one start of its processes, so that nothing else is mixed in
            step-N.tmp/rank-R.*         rank R's files of a checkpoint: this node's ranks' and those of another node's
            step-N.tmp/rank-R.copy.json written last: rank R's files are complete

The folder outlives the processes; a clean end of the run removes it. A copy can be resumed from, in any layout, where
each of its writers' files lie on some node.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch
from torch import distributed

from mtnlg_model.checkpoint.manifest import (
    CheckpointError,
    NonNegative,
    PartialManifest,
    Progress,
    file_checksum,
    parse_json,
    read_bounded,
)
from mtnlg_model.console import Failure, say
from mtnlg_model.files import write_text
from mtnlg_model.settings import Settings
from mtnlg_parallel.environment import read_environment
from mtnlg_parallel.layout import Layout

from .collectives import all_gather_json, wait_for_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mtnlg_model.checkpoint.manifest import FileEntry

DIRECTORY: Final = "MTNLG_MEMORY_DIR"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  (the folder's owner is checked)
CHUNK_BYTES: Final = 16 << 20
_FILES = re.compile(r"rank-(0|[1-9][0-9]{0,8})\..+")
_COPIED = "copy.json"


class Copied(Settings):
    """What a writer notes of its files: its part of the manifest, and what all writers' parts have in common."""

    part: PartialManifest
    progress: Progress
    optimizer_steps: NonNegative


class MemoryCopy(NamedTuple):
    """A complete copy: of each writer, the ranks whose nodes have its files, and what it noted of them."""

    attempt: str
    holders: dict[int, list[int]]
    writers: list[Copied]

    @property
    def progress(self) -> Progress:
        """How far training had come."""
        return self.writers[0].progress


class MemoryStore:
    """One rank's view of its node's folder. `find` and `fetch` are called by all ranks together."""

    def __init__(self, out: Path, rank: int, world: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        self.ranks_per_node = read_environment().local_world
        if world % self.ranks_per_node:
            raise Failure(
                f"LOCAL_WORLD_SIZE = {self.ranks_per_node} does not divide {world} ranks, but copies in memory need as "
                "many on each node; start it so, or use train.memory_checkpoint_every = 0"
            )
        self.node, self.local_rank = divmod(rank, self.ranks_per_node)
        self._root = private_folder(out)
        self._run, self._attempt = "", ""

    def open(self, run: str, attempt: str) -> None:
        """Use the copies of ``run``; new ones belong to ``attempt``."""
        self._run, self._attempt = run, attempt

    def folder(self, step: int, attempt: str = "") -> Path:
        """The folder of a copy, made by this attempt or by another one."""
        return self._root / f"{self._run}-{attempt or self._attempt}" / f"step-{step}.tmp"

    def complete(self, folder: Path, writer: int, copied: Copied) -> None:
        """Note that this writer's files are complete."""
        write_text(folder / f"rank-{writer}.{_COPIED}", copied.model_dump_json())

    def remove_older(self, step: int) -> None:
        """Remove this node's copies but those of this attempt from ``step`` on."""
        for folder in self._root.glob("*/step-*.tmp"):
            if folder.parent != self.folder(step).parent or _step(folder) < step:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """Remove all of this node's copies."""
        shutil.rmtree(self._root, ignore_errors=True)

    def find(self) -> MemoryCopy | None:
        """The newest copy of this run of which every writer's files lie on some node."""
        found: dict[tuple[int, str, int, int], Copied] = {}
        for path in sorted(self._root.glob(f"{self._run}-*/step-*.tmp/rank-*.{_COPIED}")):
            attempt = path.parents[1].name.removeprefix(f"{self._run}-")
            step, writer = _step(path.parent), _writer(path.name)
            # The ranks of a node share what lies there, so that each file has one who tells of it.
            if writer % self.ranks_per_node == self.local_rank and (copied := _read(path, step, writer)):
                found[step, attempt, _world(copied), writer] = copied
        holders: dict[tuple[int, str, int], dict[int, list[int]]] = {}
        for rank, keys in enumerate(all_gather_json(list(found), self._device)):
            for *copy, writer in keys:
                holders.setdefault(tuple(copy), {}).setdefault(writer, []).append(rank)
        complete = [copy for copy, writers in holders.items() if writers.keys() == set(range(copy[-1]))]
        if not complete:
            return None
        newest = max(complete)
        mine = [found[*newest, writer] for writer, ranks in holders[newest].items() if ranks[0] == self._rank]
        texts = all_gather_json([copied.model_dump_json() for copied in mine], self._device)
        parts = [Copied.model_validate_json(text) for rank_texts in texts for text in rank_texts]
        return MemoryCopy(newest[1], holders[newest], parts)

    def fetch(self, copy: MemoryCopy, names: set[str], files: Mapping[str, FileEntry]) -> None:
        """Bring those files that this node's ranks need and it lacks from a node that has them."""
        folder, ranks = self.folder(copy.progress.step, copy.attempt), self.ranks_per_node
        folder.mkdir(parents=True, exist_ok=True)
        missing = sorted(name for name in names if _length(folder / name) != files[name].bytes)
        wanted = all_gather_json(missing, self._device)
        # Every rank walks through the same list, so that senders and receivers meet.
        for name, node in sorted({(name, rank // ranks) for rank, names in enumerate(wanted) for name in names}):
            writer, size = _writer(name), files[name].bytes
            sender = copy.holders[writer][node % len(copy.holders[writer])]
            receiver = node * ranks + writer % ranks
            for start, length in chunks(size) if self._rank in {sender, receiver} else ():
                if self._rank == sender:
                    distributed.send(read_chunk(folder / name, start, length).to(self._device), receiver)
                else:
                    content = torch.empty(length, dtype=torch.uint8, device=self._device)
                    distributed.recv(content, sender)
                    write_chunk(folder / name, start, content)
            if self._rank == receiver and file_checksum(folder / name) != files[name].checksum:
                raise CheckpointError(f"{folder / name}: damaged on its way from rank {sender}; run the command again")
        wait_for_all(self._device)


def private_folder(out: Path) -> Path:
    """A folder in memory for copies of the run in ``out``: this user's own, not a link, closed to all others."""
    name = f"mtnlg-{os.getuid()}-{hashlib.blake2b(os.fsencode(out.resolve()), digest_size=8).hexdigest()}"
    problem = ""
    for base in [os.environ[DIRECTORY]] if DIRECTORY in os.environ else [SHARED_MEMORY, tempfile.gettempdir()]:
        folder = Path(base, name)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            if problem:
                say(f"{problem}; copies in memory go to {folder}, which may be a disk")
            return folder
        problem = f"{folder}: not a folder of this user alone"
    raise Failure(f"{problem}; name another one in {DIRECTORY}, or use train.memory_checkpoint_every = 0")


def chunks(size: int) -> Iterator[tuple[int, int]]:
    """Start and length of the parts in which a file of ``size`` bytes travels."""
    return ((start, min(CHUNK_BYTES, size - start)) for start in range(0, size, CHUNK_BYTES))


def read_chunk(path: Path, start: int, length: int) -> torch.Tensor:
    """``length`` bytes of a file."""
    return torch.from_numpy(np.fromfile(path, np.uint8, length, offset=start))


def write_chunk(path: Path, start: int, content: torch.Tensor) -> None:
    """Write the next bytes of a file."""
    with path.open("ab" if start else "wb") as file:
        file.write(content.cpu().numpy().data)


def parse_copied(raw: bytes, writer: int, place: Path | str) -> Copied:
    """Parse what a writer noted. Raises ``CheckpointError`` where it lists files of others."""
    copied = parse_json(raw, Copied, place)
    if not all(name.startswith(f"rank-{writer}.") for name in copied.part.files):
        raise CheckpointError(f"{place}: lists files that are not those of rank {writer}")
    return copied


def _read(path: Path, step: int, writer: int) -> Copied | None:
    """What a writer noted, if it is about this step and all files are as long as it says."""
    try:
        copied = parse_copied(read_bounded(path), writer, path)
    except CheckpointError:
        return None
    whole = all(_length(path.with_name(name)) == file.bytes for name, file in copied.part.files.items())
    return copied if whole and copied.progress.step == step else None


def _length(path: Path) -> int:
    """Length of a regular file; -1 where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _world(copied: Copied) -> int:
    return Layout.model_validate(copied.progress.layout.model_dump()).world


def _writer(name: str) -> int:
    """R of rank-R.*."""
    match = _FILES.fullmatch(name)
    if not match:
        raise CheckpointError(f"{name}: not the name of a rank's file")
    return int(match[1])


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-").removesuffix(".tmp"))
