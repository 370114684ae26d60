"""One file from a server or a mirror folder: whole, checked, and begun where the last attempt stopped.

    bytes → ``.NAME.partial``, whose sidecar says how many of them are safe and of which version of the file
          → the length and every checksum that the base offers → ``NAME``, with a manifest ``NAME.json`` beside it

A connection that breaks, a busy server and a wrong byte are tried again, longer and longer apart; a file that is not
there, and one that leads elsewhere, are not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable  # noqa: TC003  (a NamedTuple keeps its annotations)
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from mtnlg_data.console import Failure
from mtnlg_data.files import sha256, sync_directory, write_json

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from threading import Event

ATTEMPTS = 6  # one after the other without getting on
LONGEST_WAIT = 60.0  # seconds
BLOCK = 1 << 20
SYNCED_EVERY = 1 << 26
GETS_ON = 1 << 20  # bytes after which an attempt that broke off counts as a good one


class Transient(Exception):  # noqa: N818  (not yet an error: it is tried again)
    """An attempt failed in a way that another may not.

    ``wait`` is how many seconds the server asks for; ``again`` says that what has come is of no use.
    """

    def __init__(self, what: str, wait: float = 0.0, *, again: bool = False) -> None:
        super().__init__(what)
        self.wait = wait
        self.again = again


class Offer(NamedTuple):
    """What a base gives when asked for a file from some byte on."""

    read: Callable[[int], bytes]  # at most so many bytes, none at the end
    start: int  # the first byte that comes: what was asked for, or 0 where the base begins again
    length: int | None  # of the whole file
    version: str | None  # names this version of the file; without one a cut-off transfer begins again
    digests: dict[str, str]  # hex by algorithm of hashlib, of the whole file


class Base(Protocol):
    """Where files are fetched from."""

    @property
    def name(self) -> str:
        """A URL or a folder, for a person."""

    def open(self, path: str, start: int, version: str | None) -> AbstractContextManager[Offer]:
        """Offer the file, from ``start`` on if it still is this version.

        Raises ``Transient`` or, where another attempt is of no use, ``Failure``.
        """


class Landed(NamedTuple):
    """A file that lies here whole."""

    size: int
    is_new: bool


def fetch_file(
    base: Base, path: str, target: Path, *, wait: Callable[[float], None], stop: Event, verify: bool = False
) -> Landed:
    """Bring ``path`` below ``base`` to ``target``, unless it is there; with ``verify`` every byte there is read again.

    Raises ``Failure`` naming the file where it cannot be had, ``Transient`` where ``stop`` was set.
    """
    if (size := landed(target, verify=verify)) is not None:
        return Landed(size, is_new=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _Partial(target)
    tries = 0
    while True:
        before = partial.state.size
        try:
            _receive(base, path, partial, stop)
            return Landed(_settle(partial, f"{base.name}/{path}"), is_new=True)
        except Transient as error:
            if stop.is_set():
                raise
            if error.again:
                partial.drop()
            tries = 1 if partial.state.size - before >= GETS_ON else tries + 1
            if tries == ATTEMPTS:
                raise Failure(f"{base.name}/{path}: {error}, {tries} times; the same command tries again") from error
            wait(max(error.wait, backoff(tries)))


def backoff(tries: int) -> float:
    """Seconds to wait after so many attempts, drawn, so that many who were sent away do not return together."""
    return min(LONGEST_WAIT, 2.0 ** (tries - 1)) * random.uniform(0.5, 1.0)


def landed(target: Path, *, verify: bool = False) -> int | None:
    """The size of a file that was fetched whole and not touched since; None where there is none.

    A file whose size or time of change is not that of its manifest is read, and counts if its checksum is right; its
    manifest then has the new time, so that it is read once.
    """
    try:
        manifest = json.loads(manifest_of(target).read_text(encoding="utf-8"))
        status = target.stat()
        untouched = (status.st_size, status.st_mtime_ns) == (manifest["bytes"], manifest["changed_ns"])
        if not untouched or verify:
            if sha256(target) != manifest["sha256"]:
                return None
            write_json(manifest_of(target), {**manifest, "changed_ns": status.st_mtime_ns})
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return status.st_size


def has_landed(target: Path) -> bool:
    """Whether a file was fetched and has its length; who reads it need not read it twice."""
    try:
        manifest = json.loads(manifest_of(target).read_text(encoding="utf-8"))
        return bool(target.stat().st_size == manifest["bytes"])
    except (FileNotFoundError, ValueError, KeyError):
        return False


def manifest_of(target: Path) -> Path:
    """Where the manifest of a fetched file lies."""
    return target.with_name(f"{target.name}.json")


@dataclass
class _State:
    """What the sidecar says of the bytes that have come."""

    size: int = 0  # bytes that are on the disk for good
    sha256: str = hashlib.sha256().hexdigest()
    length: int | None = None
    version: str | None = None
    digests: dict[str, str] = field(default_factory=dict)


class _Partial:
    """The bytes of a file that have come so far."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f".{target.name}.partial")
        self.sidecar = target.with_name(f".{target.name}.partial.json")
        self.digest = hashlib.sha256()
        self.state = self._kept()

    def _kept(self) -> _State:
        """What an earlier run left, if the bytes are those that it received."""
        try:
            state = _State(**json.loads(self.sidecar.read_text(encoding="utf-8")))
            with self.path.open("r+b") as file:
                file.truncate(state.size)
                self.digest = hashlib.sha256()
                while block := file.read(BLOCK):
                    self.digest.update(block)
        except (FileNotFoundError, ValueError, TypeError):
            return _State()
        return state if self.digest.hexdigest() == state.sha256 else _State()

    def begin(self, offer: Offer) -> None:
        """Go on behind what is there, or from the beginning."""
        if offer.start == 0:
            self.digest = hashlib.sha256()
        size = offer.start
        self.state = _State(size, self.digest.hexdigest(), offer.length, offer.version, offer.digests)

    def save(self, file: IO[bytes], size: int) -> None:
        """Make so many bytes safe, then say so."""
        file.flush()
        os.fsync(file.fileno())
        self.state.size, self.state.sha256 = size, self.digest.hexdigest()
        write_json(self.sidecar, asdict(self.state))

    def drop(self) -> None:
        """Forget all bytes that have come."""
        self.path.unlink(missing_ok=True)
        self.sidecar.unlink(missing_ok=True)
        self.state = _State()


def _receive(base: Base, path: str, partial: _Partial, stop: Event) -> None:
    """One attempt to have all bytes; those that came before it breaks off stay."""
    kept = partial.state
    if kept.length is not None and kept.size == kept.length:
        return
    if kept.size and kept.version is None:
        partial.drop()
    with base.open(path, partial.state.size, partial.state.version) as offer:
        if offer.start not in {0, partial.state.size}:
            raise Transient(f"bytes came from {offer.start} on, not from {partial.state.size}", again=True)
        if offer.length is None and not offer.digests:
            raise Failure(
                f"{base.name}/{path}: neither length nor checksum is told, so a cut-off file would look whole"
            )
        partial.begin(offer)
        size = safe = offer.start
        with partial.path.open("r+b" if size else "wb") as file:
            file.truncate(file.seek(size))
            try:
                while block := _read(offer, stop):
                    file.write(block)
                    partial.digest.update(block)
                    size += len(block)
                    if size - safe >= SYNCED_EVERY:
                        partial.save(file, size)
                        safe = size
            finally:
                partial.save(file, size)
    if offer.length is not None and size != offer.length:
        raise Transient(f"{size} bytes came where {offer.length} were promised", again=size > offer.length)


def _read(offer: Offer, stop: Event) -> bytes:
    if stop.is_set():
        raise Transient("interrupted")
    return offer.read(BLOCK)


def _settle(partial: _Partial, place: str) -> int:
    """Check all that can be checked, then put the file in its place; returns its size."""
    target, state = partial.target, partial.state
    for algorithm, promised in state.digests.items():
        with partial.path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if found != promised:
            raise Transient(f"its bytes have {algorithm} {found} where {promised} is promised", again=True)
    changed = partial.path.stat().st_mtime_ns
    manifest: dict[str, Any] = {"bytes": state.size, "sha256": state.sha256, "changed_ns": changed}
    write_json(manifest_of(target), {**manifest, "from": place, "version": state.version})
    partial.path.replace(target)
    sync_directory(target.parent)
    partial.sidecar.unlink(missing_ok=True)
    return state.size
