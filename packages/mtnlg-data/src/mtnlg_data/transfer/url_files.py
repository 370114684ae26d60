"""Files at URLs: listed, read in part, and fetched to this machine: each whole, of one version, or not at all.

A copy is made by ``download``: blocks by range, kept through a kill, repeated with growing pauses. Before the first and
after the last block the store must still have the version that was listed (its ETag, generation or modification time),
so no file is put together from two. What was fetched is recorded in the folder of the copies, and is not fetched again
while the record agrees with both ends.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_data.console import Failure, IoFailure, progress
from mtnlg_data.engine import lock_folder, manifest_path
from mtnlg_data.files import read_small, write_json

from .download import MAX_ATTEMPTS, RemoteStream, TransientError, backoff, download_file
from .urls import EXTRAS, connect, driver_errors, url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeVar

    T = TypeVar("T")

RECORD = ".fetched.json"
STAGING = ".fetching"
RECORD_BYTES = 1 << 30
BLOCK_BYTES = 1 << 24  # a request
SMALL_BYTES = 1 << 28
#: Keys of fsspec's ``info`` that tell versions of a file apart, the strictest first.
VERSION_KEYS = ("ETag", "etag", "generation", "blob_id", "mtime", "LastModified", "last_modified", "created")


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
        return f"{scheme}://{self.path if scheme in {'file', 'local'} else self.path.lstrip('/')}"

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    def __str__(self) -> str:
        """Return the URL, for messages."""
        return self.url


def list_files(url: str, *, missing_ok: bool = False) -> dict[str, RemoteFile]:
    """The files of a URL by name, sorted: a file, all below a folder, or those that match a pattern.

    The name is the path below the folder, or below the last folder of the pattern without a wildcard. Raises
    ``Failure`` where there is no file, unless ``missing_ok``.
    """
    system, path = connect(url)
    path = path.rstrip("/")
    parts = path.split("/")
    fixed = next((number for number, part in enumerate(parts[:-1]) if glob.has_magic(part)), len(parts) - 1)
    is_pattern, base = glob.has_magic(path), "/".join(parts[:fixed])

    def look_up() -> dict[str, dict[str, Any]]:
        system.invalidate_cache()
        if is_pattern:
            return dict(system.glob(path, detail=True))
        if missing_ok and not system.exists(path):
            return {}
        info = system.info(path)
        return {path: info} if info["type"] == "file" else dict(system.find(path, detail=True))

    found = persist(look_up, url)
    base = base if is_pattern or path in found else path
    files = {
        name.removeprefix(base).lstrip("/"): RemoteFile(url, name, int(info["size"] or 0), _version(info))
        for name, info in found.items()
        if info["type"] == "file" and not name.endswith("/")
    }
    if not files and not missing_ok:
        raise Failure(f"{url}: no file there")
    for name, file in files.items():
        if {"", ".", ".."} & {*name.split("/")}:
            raise Failure(f"{file}: refused: a part of its path is empty or made of dots")
    return dict(sorted(files.items(), key=lambda item: PurePosixPath(item[0])))


def _version(info: Mapping[str, Any]) -> str | None:
    return next((f"{key} {info[key]}" for key in VERSION_KEYS if info.get(key)), None)


def version_at(system: Any, path: str) -> tuple[int, str | None]:  # noqa: ANN401  (fsspec has no types)
    """Size and version of a file, as a listing will have them."""
    info = _look_up(system, path)
    return int(info["size"] or 0), _version(info)


def _look_up(system: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
    """The driver's ``info`` as the store has it now, not as it was listed."""
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    options = {"refresh": True} if EXTRAS.get(protocol, "http") != "http" else {}
    if protocol == "hf":
        options["expand_info"] = True  # else a refreshed one has no version
    return dict(system.info(path, **options))


def _is_other_version(file: RemoteFile, info: Mapping[str, Any]) -> bool:
    key, _, value = (file.version or "").partition(" ")
    return int(info["size"] or 0) != file.size or str(info.get(key) or value) != value


def persist(action: Callable[[], T], url: str) -> T:
    """The result of an action on a URL, repeated while its failures may pass. Raises ``Failure`` where they do not."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            with driver_errors(url):
                return action()
        except TransientError as error:
            if attempt == MAX_ATTEMPTS:
                raise IoFailure(f"{url}: {error}, {attempt} times; the same command tries again") from error
            time.sleep(backoff(attempt))
    raise AssertionError


class RangeReader:
    """A file at a URL, read by position."""

    def __init__(self, url: str) -> None:
        """Raise ``Failure`` where there is no such file."""
        self._system, self._path = connect(url)
        self._url = url
        self.size = int(persist(lambda: self._system.info(self._path), url)["size"] or 0)

    def read(self, first: int, last: int) -> bytes:
        """Bytes ``first`` to ``last``, both within its size."""

        def attempt() -> bytes:
            content: bytes = self._system.cat_file(self._path, start=first, end=last)
            if len(content) != last - first:
                raise TransientError(f"{len(content)} bytes came where {last - first} were asked for")
            return content

        return persist(attempt, self._url) if last > first else b""


def read_url(url: str) -> bytes:
    """The content of a small file. Raises ``Failure`` where there is none."""
    reader = RangeReader(url)
    if reader.size > SMALL_BYTES:
        raise Failure(f"{url}: {reader.size:,} bytes, too many for a file of its kind")
    return reader.read(0, reader.size)


def read_beginning(path: Path | RemoteFile, size: int) -> bytes:
    """The first ``size`` bytes of a file, or all where it has fewer."""
    if isinstance(path, RemoteFile):
        return RangeReader(path.url).read(0, min(size, path.size))
    with path.open("rb") as file:
        return file.read(size)


class UrlRemote:
    """One file at a URL as a `download.Remote`."""

    def __init__(self, file: RemoteFile) -> None:
        self.name = file.url.rpartition("/")[0]
        self._file = file
        self._system = connect(file.place)[0]

    @contextmanager
    def open(self, path: str, start: int, version: str | None) -> Iterator[RemoteStream]:
        """Open the file. Raises ``Failure`` where it is no longer of the version that was listed."""
        del path  # it is one file's
        file = self._file
        digests = _digests(self._check())
        position = start if version == file.version else 0
        block = memoryview(b"")

        def read(size: int) -> bytes:
            nonlocal block, position
            if not block and position < file.size:
                end = min(position + BLOCK_BYTES, file.size)
                with driver_errors(file.url):
                    block = memoryview(self._system.cat_file(file.path, start=position, end=end))
                if len(block) != end - position:
                    asked, came, block = end - position, len(block), memoryview(b"")
                    raise TransientError(f"{came} bytes came where {asked} were asked for")
                position = end
                if position == file.size:
                    self._check()
            part, block = block[:size], block[size:]
            return bytes(part)

        yield RemoteStream(read, position, file.size, file.version, digests)

    def _check(self) -> dict[str, Any]:
        with driver_errors(self._file.url):
            info = _look_up(self._system, self._file.path)
        if _is_other_version(self._file, info):
            raise Failure(f"{self._file}: it changed since this command listed it; run the same command again")
        return info


def _digests(info: Mapping[str, Any]) -> dict[str, str]:
    """Checksums of the whole file by hashlib's name, in hex: Google's MD5, the Hub's SHA-256.

    An ETag of S3 is none: it may be that of parts, or of a file encrypted with a key of KMS.
    """
    if isinstance(md5 := info.get("md5Hash"), str):
        return {"md5": base64.b64decode(md5).hex()}
    lfs = info.get("lfs")
    return {"sha256": lfs["sha256"]} if isinstance(lfs, dict) and "sha256" in lfs else {}


class Fetched(NamedTuple):
    """What `fetch_files` did: number of files that it fetched and that were there, bytes of both."""

    fetched: int
    kept: int
    size: int


def fetch_files(
    files: Mapping[str, RemoteFile], folder: Path, *, workers: int = 4, label: str = "", exact: bool = False
) -> Fetched:
    """Copy files into ``folder`` under these names, unless the copies are there; with a ``label`` show progress.

    With ``exact`` copies of other files are removed from the folder. Raises ``Failure`` with the URL of the first that
    cannot be fetched; the others are complete or go on in mid-file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = read_record(folder / RECORD)
    for name in record.keys() - files.keys() if exact else ():
        (folder / name).unlink(missing_ok=True)
        del record[name]
    wanted = {name: file for name, file in files.items() if not _is_copy(folder / name, file, record.get(name))}
    stop = Event()
    shown = progress(label, len(wanted), "files") if label else nullcontext(lambda _: None)
    with shown as advance, ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_fetch_file, file, folder, name, stop) for name, file in wanted.items()]
        try:
            for name, future in zip(wanted, futures, strict=True):
                future.result()
                record[name] = _both_ends(folder / name, wanted[name])
                advance(1)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            write_json(folder / RECORD, record)
    shutil.rmtree(folder / STAGING, ignore_errors=True)
    return Fetched(len(wanted), len(files) - len(wanted), sum(file.size for file in files.values()))


def read_record(path: Path) -> dict[str, Any]:
    """What a command has transferred: name → both ends. Empty where there is no record of ours."""
    try:
        record = json.loads(read_small(path, RECORD_BYTES))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _both_ends(copy: Path, file: RemoteFile) -> list[Any]:
    """What is recorded of a copy."""
    status = copy.lstat()
    return [file.url, file.size, file.version, status.st_size, status.st_mtime_ns]


def _is_copy(path: Path, file: RemoteFile, recorded: list[Any] | None) -> bool:
    """Whether neither the copy nor the file has changed; a store that tells no versions apart is asked again."""
    return file.version is not None and path.exists() and _both_ends(path, file) == recorded


def _fetch_file(file: RemoteFile, folder: Path, name: str, stop: Event) -> None:
    target = folder / name
    staged = folder / STAGING / hashlib.sha256(name.encode()).hexdigest()[:16] / target.name
    try:
        left = json.loads(read_small(manifest_path(staged)))["version"]
    except (FileNotFoundError, ValueError, KeyError):
        left = None
    if left is None or left != file.version:  # complete, by a run that was killed here, but of another version
        staged.unlink(missing_ok=True)
    download_file(UrlRemote(file), file.name, staged, sleep=time.sleep, stop=stop, largest=file.size)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged.replace(target)
    manifest_path(staged).unlink(missing_ok=True)


@contextmanager
def local_copy(file: RemoteFile, folder: Path) -> Iterator[Path]:
    """A copy of the file below ``folder`` until the block ends; one that a kill left is used or completed."""
    fetch_files({file.name: file}, folder)
    yield folder / file.name
    shutil.rmtree(folder, ignore_errors=True)


def local_path(path: Path) -> Path:
    """The path itself; of a URL of a small file or folder (a tokenizer, a list), a copy in $XDG_CACHE_HOME/mtnlg-data.

    The copy is made again when the file has changed; a process looks only once, and waits where another is at it.
    """
    url = url_of(path)
    return path if url is None else _cached_copy(url)


@cache
def _cached_copy(url: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtnlg-data" / "urls"
    folder = cache / hashlib.sha256(url.encode()).hexdigest()[:16]
    files = list_files(url)
    with lock_folder(folder, wait=True):
        fetch_files(files, folder, exact=True)
    return folder / next(iter(files)) if len(files) == 1 else folder
