"""List files at URLs, read parts of them, and fetch them to this machine: each whole, of one version, or not at all.

    blocks by range → ``.NAME.VERSION.partial``, which a later run continues
                    → size, version and the checksums that the store offers are checked → ``NAME``, a line in the record

Before the first and after the last block the store must still have the version that was listed (its ETag, generation or
modification time), so no file is assembled from two versions. A file in the record is not fetched again while it, and
the version at its URL, match the record.
"""

from __future__ import annotations

import base64
import errno
import glob
import hashlib
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_data.console import Failure, progress
from mtnlg_data.engine import lock_folder
from mtnlg_data.files import open_regular, open_to_update, read_small, sha256, sync_directory

from .urls import EXTRAS, TransientError, Url, connect, persist

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .urls import Location

RECORD = ".fetched.jsonl"
RECORD_BYTES = 1 << 30
BLOCK_BYTES = 1 << 24  # a request
SMALL_BYTES = 1 << 28
#: Keys of fsspec's ``info`` that distinguish versions of a file, the strictest first.
VERSION_KEYS = (
    *("ETag", "etag", "generation", "blob_id", "mtime"),
    *("LastModified", "last_modified", "Last-Modified", "created"),
)
#: Errors that concern one path only: it is too long, or has a file where another path has a folder.
PATH_ERRORS = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, as it was when it was listed."""

    place: str  # the URL that was given: its file system holds the file
    path: str  # in that file system
    size: int
    version: str | None = None  # key and value of the driver's ``info``

    @property
    def url(self) -> str:
        """The URL of the file."""
        scheme = self.place.partition("://")[0]
        if self.path.startswith(f"{scheme}://"):  # HTTP's have it in their paths
            return self.path
        return f"{scheme}://{self.path if scheme in {'file', 'local'} else self.path.lstrip('/')}"

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    def __str__(self) -> str:
        """Return the URL, for messages."""
        return self.url


def list_files(url: str, *, missing_ok: bool = False) -> dict[str, RemoteFile]:
    """The files at a URL by name, sorted: a single file, all below a folder, or those that match a pattern.

    The name is the path below the folder, or below the last folder of the pattern without a wildcard. Raises
    ``Failure`` if there is no file, unless ``missing_ok``.
    """
    system, path = connect(url)
    path = path.rstrip("/")
    parts = path.split("/")
    is_pattern, base = glob.has_magic(path), "/".join(fixed_parts(parts))

    def look_up() -> dict[str, dict[str, Any]]:
        system.invalidate_cache()
        if is_pattern:
            return dict(system.glob(path, detail=True))
        if missing_ok and not system.exists(path):
            return {}
        info = system.info(path)
        return {path: info} if info["type"] == "file" else dict(system.find(path, detail=True))

    listed = persist(look_up, url)
    base = base if is_pattern or path in listed else path
    files = {
        name.removeprefix(base).lstrip("/"): RemoteFile(url, name, _size(info, name), _version(info))
        for name, info in listed.items()
        if info["type"] == "file" and not name.endswith("/")
    }
    if not files and not missing_ok:
        raise Failure(f"{url}: no file there")
    for name, file in files.items():
        if {"", ".", ".."} & {*name.split("/")}:
            raise Failure(f"{file}: refused: a part of its path is empty or made of dots")
    return dict(sorted(files.items(), key=lambda item: PurePosixPath(item[0])))


def fixed_parts(parts: Sequence[str]) -> Sequence[str]:
    """The folders of a pattern before the first part with a wildcard: its deepest folder without one."""
    return parts[: next((number for number, part in enumerate(parts[:-1]) if glob.has_magic(part)), -1)]


def find_file(url: str) -> RemoteFile:
    """The one file at a URL, as it is now. Raises ``Failure`` if there is none."""
    system, path = connect(url)
    info = persist(lambda: _look_up(system, path), url)
    return RemoteFile(url, path, _size(info, url), _version(info))


def _size(info: Mapping[str, Any], name: str) -> int:
    if info["size"] is None:
        raise Failure(f"{name}: the server does not give its length, so a truncated file would not be noticed")
    return int(info["size"])


def _version(info: Mapping[str, Any]) -> str | None:
    return next((f"{key} {info[key]}" for key in VERSION_KEYS if info.get(key)), None)


def _look_up(system: Any, path: str) -> dict[str, Any]:  # noqa: ANN401  (fsspec has no types)
    """The driver's ``info`` of the file as the store has it now, without cached listings."""
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    options = {"refresh": True} if EXTRAS.get(protocol, "http") != "http" else {}
    if protocol == "hf":
        options["expand_info"] = True  # else a refreshed one has no version
    return dict(system.info(path, **options))


class RangeReader:
    """A file at a URL, read by position."""

    def __init__(self, url: str, size: int | None = None) -> None:
        """Raise ``Failure`` if there is no such file; with a known ``size`` the file is not looked up."""
        self._system, self._path = connect(url)
        self._url = url
        self.size = find_file(url).size if size is None else size

    def read(self, first: int, last: int) -> bytes:
        """Bytes ``first`` up to ``last`` (exclusive), both within the file's size."""

        def attempt() -> bytes:
            content: bytes = self._system.cat_file(self._path, start=first, end=last)
            if len(content) == self.size:  # from a server that ignores ranges
                content = content[first:last]
            if len(content) != last - first:
                raise TransientError(f"got {len(content)} bytes of the {last - first} requested")
            return content

        return persist(attempt, self._url) if last > first else b""


def read_url(url: str) -> bytes:
    """The content of a small file. Raises ``Failure`` if there is none."""
    reader = RangeReader(url)
    if reader.size > SMALL_BYTES:
        raise Failure(f"{url}: {reader.size:,} bytes, too many for a file of its kind")
    return reader.read(0, reader.size)


def read_beginning(path: Path | RemoteFile, size: int) -> bytes:
    """The first ``size`` bytes of a file, or all if it has fewer."""
    if isinstance(path, RemoteFile):
        return RangeReader(path.url, path.size).read(0, min(size, path.size))
    with open_regular(path, follow=True) as file:
        return file.read(size)


class Copy(NamedTuple):
    """The record of a fetched file: its URL, size and version there, its time and SHA-256 here."""

    url: str
    size: int
    version: str | None
    changed_ns: int
    sha256: str

    def is_of(self, file: RemoteFile | str) -> bool:
        """Whether it is a copy of this file; False for a listed file without a version, which is then fetched again."""
        if isinstance(file, str):
            return self.url == file
        return self.version is not None and (self.url, self.size, self.version) == (file.url, file.size, file.version)


class FetchRecord:
    """The copies in a folder, one line of JSON each, written when the copy is complete, so that a kill loses none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORD
        self._lock = Lock()
        self.copies: dict[str, Copy] = {}
        lines = read_small(self._path, RECORD_BYTES).splitlines() if self._path.exists() else []
        for line in lines:
            try:
                name, *copy = json.loads(line)
                self.copies[name] = Copy(*copy)
            except (ValueError, TypeError):  # empty, or torn by a kill
                continue

    def add(self, name: str, copy: Copy) -> None:
        """Add a copy."""
        with self._lock, open_to_update(self._path, os.O_APPEND) as file:
            self.copies[name] = copy
            file.write(f"\n{json.dumps([name, *copy])}\n".encode())

    def holds(self, name: str, path: Path, *, verify: bool = False) -> bool:
        """Whether the file is still as fetched; its bytes are read if ``verify`` is set or its time has changed."""
        copy = self.copies.get(name)
        if copy is None or not path.exists() or (status := path.stat()).st_size != copy.size:
            return False
        if status.st_mtime_ns == copy.changed_ns and not verify:
            return True
        if sha256(path) != copy.sha256:
            return False
        self.add(name, copy._replace(changed_ns=status.st_mtime_ns))
        return True


class Fetched(NamedTuple):
    """Result of `fetch_files`: numbers of files fetched and already there, bytes of both together, and failures."""

    fetched: int
    kept: int
    size: int
    failed: Mapping[str, str] = {}  # why, by name


def fetch_files(
    files: Mapping[str, RemoteFile | str],
    folder: Path,
    *,
    workers: int = 4,
    label: str = "",
    exact: bool = False,
    verify: bool = False,
    largest: int | None = None,
    keep_going: bool = False,
) -> Fetched:
    """Copy files, or URLs, into ``folder`` under these names, unless the copies are there; ``label`` shows progress.

    With ``exact``, copies of other files are removed from the folder; ``verify`` reads every byte of existing copies; a
    file of more than ``largest`` bytes is refused. Raises ``Failure`` with the URL of the first that cannot be fetched,
    unless ``keep_going`` is set; the others are complete, or are resumed by the next call.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = FetchRecord(folder)
    for name in record.copies.keys() - files.keys() if exact else ():
        (folder / name).unlink(missing_ok=True)
    stop, started = Event(), time.monotonic()

    def fetch(name: str) -> tuple[bool, int]:
        file, copy = files[name], record.copies.get(name)
        if copy is not None and copy.is_of(file) and record.holds(name, folder / name, verify=verify):
            return False, copy.size
        remote = find_file(file) if isinstance(file, str) else file
        if largest is not None and remote.size > largest:
            raise Failure(f"{remote}: longer than {largest:,} bytes; --largest allows more")
        record.add(name, _fetch_file(remote, folder / name, stop))
        return True, remote.size

    fetched = new_bytes = size = 0
    failed: dict[str, str] = {}
    bar = progress(label, len(files), "files") if label else nullcontext(lambda *_: None)
    with bar as advance, ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(fetch, name): name for name in files}
        try:
            for future in as_completed(futures):
                name = futures[future]
                try:
                    is_new, bytes_here = future.result()
                except (Failure, OSError) as error:
                    failed[name] = _why(error, folder / name, keep_going=keep_going)
                else:
                    fetched += is_new
                    size += bytes_here
                    new_bytes += bytes_here * is_new
                advance(1, f"{new_bytes / 1e6 / max(1e-3, time.monotonic() - started):.1f} MB/s")
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return Fetched(fetched, len(files) - fetched - len(failed), size, failed)


def _why(error: Exception, target: Path, *, keep_going: bool) -> str:
    """Why a file was not fetched. Raises the error, with the file's name, if it ends the command."""
    if isinstance(error, OSError):
        error = OSError(error.errno, os.strerror(error.errno or 0), str(target))
        keep_going = keep_going and error.errno in PATH_ERRORS
    if not keep_going:
        raise error
    return f"{target}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _fetch_file(file: RemoteFile, target: Path, stop: Event, *, again: bool = True) -> Copy:
    """Copy one file, resuming an earlier attempt at this version; with ``again``, retry once if its bytes are wrong."""
    version = hashlib.sha256(f"{file.url} {file.size} {file.version}".encode()).hexdigest()[:8]
    partial = target.with_name(f".{target.name}.{version}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        if other != partial or file.version is None:
            other.unlink()
    info = _check_version(file)
    reader = RangeReader(file.url, file.size)
    with open_to_update(partial) as copy:
        position = copy.seek(0, os.SEEK_END) // BLOCK_BYTES * BLOCK_BYTES
        copy.truncate(copy.seek(position))
        while position < file.size:
            if stop.is_set():
                raise Failure(f"{file}: interrupted")
            position += copy.write(reader.read(position, min(position + BLOCK_BYTES, file.size)))
        copy.flush()
        os.fsync(copy.fileno())
    _check_version(file)
    digest = sha256(partial)
    for algorithm, promised in _digests(info).items():
        with partial.open("rb") as copy:
            actual = digest if algorithm == "sha256" else hashlib.file_digest(copy, algorithm).hexdigest()
        if actual != promised:
            partial.unlink()
            if again:
                return _fetch_file(file, target, stop, again=False)
            raise Failure(f"{file}: {algorithm} {actual} where the server says {promised}; fetch it again")
    partial.replace(target)
    sync_directory(target.parent)
    return Copy(file.url, file.size, file.version, target.stat().st_mtime_ns, digest)


def _check_version(file: RemoteFile) -> dict[str, Any]:
    """The store's ``info`` of a file. Raises ``Failure`` if it is no longer of the version that was listed."""
    system = connect(file.place)[0]
    info = persist(lambda: _look_up(system, file.path), file.url)
    key, _, value = (file.version or "").partition(" ")
    if _size(info, file.url) != file.size or str(info.get(key) or value) != value:
        raise Failure(f"{file}: changed since this command listed it; run the same command again")
    return info


def _digests(info: Mapping[str, Any]) -> dict[str, str]:
    """Checksums of the whole file by hashlib's name, in hex: Google's and HTTP's MD5, the Hub's SHA-256.

    An ETag of S3 is not used: it may be that of parts, or of a file encrypted with a KMS key.
    """
    if isinstance(md5 := info.get("md5Hash") or info.get("Content-MD5"), str):
        return {"md5": base64.b64decode(md5).hex()}
    lfs = info.get("lfs")
    return {"sha256": lfs["sha256"]} if isinstance(lfs, dict) and "sha256" in lfs else {}


@contextmanager
def local_copy(file: RemoteFile, folder: Path) -> Iterator[Path]:
    """A copy of the file below ``folder`` until the block ends; one that a kill left is used or completed."""
    fetch_files({file.name: file}, folder)
    yield folder / file.name
    shutil.rmtree(folder, ignore_errors=True)


def local_path(place: Location) -> Path:
    """The path itself; for a URL of a small file or folder (a tokenizer, a list), a copy in $XDG_CACHE_HOME/mtnlg-data.

    The copy is fetched again if the file has changed; a process checks only once, and waits while another fetches it.
    """
    return _cached_copy(place) if isinstance(place, Url) else place


@cache
def _cached_copy(url: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtnlg-data" / "urls"
    folder = cache / hashlib.sha256(url.encode()).hexdigest()[:16]
    files = list_files(url)
    with lock_folder(folder, wait=True):
        fetch_files(files, folder, exact=True)
    return folder / next(iter(files)) if len(files) == 1 else folder
