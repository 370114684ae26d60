"""Download one file from a remote: resumable, checked, complete or absent.

    bytes → ``.NAME.partial``, with a sidecar that records how many bytes are synced, and the file's version
          → length and every checksum that the remote offers are checked → ``NAME``, with a manifest ``NAME.json``

A broken connection, a busy server and a wrong byte are retried with growing pauses; a missing file and a redirect that
leaves the remote are not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable  # noqa: TC003  (a NamedTuple keeps its annotations)
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from mtnlg_data.console import Failure, IoFailure
from mtnlg_data.engine import manifest_path
from mtnlg_data.files import open_regular, open_to_update, read_small, sha256, sync_directory, write_json

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from threading import Event

MAX_ATTEMPTS = 6  # in a row without progress
MAX_WAIT_SECONDS = 60.0
BLOCK_BYTES = 1 << 20
SYNC_EVERY_BYTES = 1 << 26
PROGRESS_BYTES = 1 << 20  # an attempt that brought this many bytes resets the count of attempts


class TransientError(Exception):
    """A failed attempt that may succeed when repeated.

    ``wait`` is how many seconds the server asks for; with ``restart`` the bytes received so far are useless.
    """

    def __init__(self, what: str, wait: float = 0.0, *, restart: bool = False) -> None:
        super().__init__(what)
        self.wait = wait
        self.restart = restart


class RemoteStream(NamedTuple):
    """A remote file opened for reading from some offset on."""

    read: Callable[[int], bytes]  # up to that many bytes; empty at the end
    start: int  # offset of the first byte: the requested one, or 0 where the remote starts over
    length: int | None  # of the whole file
    version: str | None  # identifies this version of the file; without one, an interrupted download starts over
    digests: dict[str, str]  # of the whole file: hashlib algorithm → hex


class Remote(Protocol):
    """Where files are downloaded from."""

    @property
    def name(self) -> str:
        """URL or folder, for messages."""

    def open(self, path: str, start: int, version: str | None) -> AbstractContextManager[RemoteStream]:
        """Open the file at ``start``, or at 0 if it is no longer of this version.

        Raises ``TransientError``, or ``Failure`` where another attempt would fail too.
        """


class Downloaded(NamedTuple):
    """A complete file on this machine."""

    size: int
    is_new: bool


def download_file(
    remote: Remote,
    path: str,
    target: Path,
    *,
    sleep: Callable[[float], None],
    stop: Event,
    largest: int,
    verify: bool = False,
) -> Downloaded:
    """Download ``path`` to ``target`` unless a complete copy is there; ``verify`` reads every byte of such a copy.

    Raises ``Failure`` with the file's name where it cannot be downloaded or has more than ``largest`` bytes,
    ``TransientError`` after ``stop`` was set.
    """
    if (size := verified_size(target, verify=verify)) is not None:
        return Downloaded(size, is_new=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _Partial(target)
    attempts = 0
    while True:
        size_before = partial.state.size
        try:
            _receive(remote, path, partial, stop, largest)
            return Downloaded(_finish(partial, f"{remote.name}/{path}"), is_new=True)
        except TransientError as error:
            if stop.is_set():
                raise
            if error.restart:
                partial.discard()
            attempts = 1 if partial.state.size - size_before >= PROGRESS_BYTES else attempts + 1
            if attempts == MAX_ATTEMPTS:
                raise IoFailure(
                    f"{remote.name}/{path}: {error}, {attempts} times; the same command tries again"
                ) from error
            sleep(max(error.wait, backoff(attempts)))


def backoff(attempts: int) -> float:
    """Seconds to wait after this many attempts, with jitter, so that clients turned away together do not return so."""
    return min(MAX_WAIT_SECONDS, 2.0 ** (attempts - 1)) * random.uniform(0.5, 1.0)


def verified_size(target: Path, *, verify: bool = False) -> int | None:
    """Size of a downloaded file that is complete and unchanged, else None.

    A file that differs from its manifest in size or modification time is read, as every file is with ``verify``, and
    accepted if its checksum is right; the new time goes into the manifest, so that it is read only once.
    """
    try:
        manifest = json.loads(read_small(manifest_path(target)))
        with open_regular(target) as file:
            status = os.fstat(file.fileno())
        untouched = (status.st_size, status.st_mtime_ns) == (manifest["bytes"], manifest["changed_ns"])
        if not untouched or verify:
            if sha256(target) != manifest["sha256"]:
                return None
            write_json(manifest_path(target), {**manifest, "changed_ns": status.st_mtime_ns})
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return status.st_size


def is_downloaded(target: Path) -> bool:
    """Whether the file was downloaded and has its length; the content is not read."""
    try:
        manifest = json.loads(read_small(manifest_path(target)))
        return bool(target.stat().st_size == manifest["bytes"])
    except (FileNotFoundError, ValueError, KeyError):
        return False


@dataclass
class _State:
    """The sidecar of a partial file, as JSON."""

    size: int = 0  # bytes synced to disk
    sha256: str = hashlib.sha256().hexdigest()
    length: int | None = None
    version: str | None = None
    digests: dict[str, str] = field(default_factory=dict)


class _Partial:
    """A file whose download has not finished."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f".{target.name}.partial")
        self.sidecar = target.with_name(f".{target.name}.partial.json")
        self.digest = hashlib.sha256()
        self.state = self._load()

    def _load(self) -> _State:
        """State left by an earlier run, if the bytes on disk still have its checksum."""
        try:
            state = _State(**json.loads(read_small(self.sidecar)))
            with open_to_update(self.path) as file:
                if state.size > file.seek(0, os.SEEK_END):
                    return _State()
                file.truncate(state.size)
                file.seek(0)
                self.digest = hashlib.sha256()
                while block := file.read(BLOCK_BYTES):
                    self.digest.update(block)
        except (FileNotFoundError, ValueError, TypeError):
            return _State()
        return state if self.digest.hexdigest() == state.sha256 else _State()

    def begin(self, stream: RemoteStream) -> None:
        """Continue at the stream's start."""
        if stream.start == 0:
            self.digest = hashlib.sha256()
        size = stream.start
        self.state = _State(size, self.digest.hexdigest(), stream.length, stream.version, stream.digests)

    def save(self, file: IO[bytes], size: int) -> None:
        """Sync the first ``size`` bytes, then record them in the sidecar."""
        file.flush()
        os.fsync(file.fileno())
        self.state.size, self.state.sha256 = size, self.digest.hexdigest()
        write_json(self.sidecar, asdict(self.state))

    def discard(self) -> None:
        """Delete all bytes received so far."""
        self.path.unlink(missing_ok=True)
        self.sidecar.unlink(missing_ok=True)
        self.state = _State()


def _receive(remote: Remote, path: str, partial: _Partial, stop: Event, largest: int) -> None:
    """Make one attempt to receive the missing bytes; the bytes received before a failure are kept."""
    state = partial.state
    if state.length is not None and state.size == state.length:
        return
    if state.size and state.version is None:
        partial.discard()
    with remote.open(path, partial.state.size, partial.state.version) as stream:
        if stream.start not in {0, partial.state.size}:
            raise TransientError(f"bytes came from {stream.start} on, not from {partial.state.size}", restart=True)
        if stream.length is None and not stream.digests:
            raise Failure(
                f"{remote.name}/{path}: the server gives neither length nor checksum, "
                "so a cut-off file would look whole"
            )
        partial.begin(stream)
        size = synced = stream.start
        with open_to_update(partial.path) as file:
            file.truncate(file.seek(size))
            try:
                while max(size, stream.length or 0) <= largest and (block := _read_block(stream, stop)):
                    file.write(block)
                    partial.digest.update(block)
                    size += len(block)
                    if size - synced >= SYNC_EVERY_BYTES:
                        partial.save(file, size)
                        synced = size
            finally:
                partial.save(file, size)
    if max(size, stream.length or 0) > largest:
        partial.discard()
        raise Failure(f"{remote.name}/{path}: longer than {largest:,} bytes; --largest allows more")
    if stream.length is not None and size != stream.length:
        raise TransientError(f"{size} bytes came where {stream.length} were promised", restart=size > stream.length)


def _read_block(stream: RemoteStream, stop: Event) -> bytes:
    if stop.is_set():
        raise TransientError("interrupted")
    return stream.read(BLOCK_BYTES)


def _finish(partial: _Partial, url: str) -> int:
    """Check the digests, write the manifest and move the file to its target; returns its size."""
    target, state = partial.target, partial.state
    for algorithm, promised in state.digests.items():
        with partial.path.open("rb") as file:
            actual = hashlib.file_digest(file, algorithm).hexdigest()
        if actual != promised:
            raise TransientError(f"its bytes have {algorithm} {actual} where {promised} is promised", restart=True)
    changed = partial.path.stat().st_mtime_ns
    manifest: dict[str, Any] = {"bytes": state.size, "sha256": state.sha256, "changed_ns": changed}
    write_json(manifest_path(target), {**manifest, "from": url, "version": state.version})
    partial.path.replace(target)
    sync_directory(target.parent)
    partial.sidecar.unlink(missing_ok=True)
    return state.size
