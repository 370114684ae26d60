"""``--out URL``: a command works in a folder of this machine, and publishes its results when they are complete.

State, locks, renames and random reads need a disk, so the work stays local, and the same command resumes it there. The
published files are those that ``--keep last`` keeps of the text: the last shards, the tokens, the records of dropped
documents, summary and page. Lists through which others read the rest (blend.json, stage.json, summary.json) are removed
from the URL before anything changes there and uploaded last, so that nobody takes a partial result for a complete one.
A record in the local folder says what is at the URL: files that are already there are not uploaded again, and files
that a later run no longer makes are removed. Files of others at the URL are never touched: a URL that holds some is
refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_data.console import Failure, UsageFailure, progress, say
from mtnlg_data.engine import lock_folder, manifest_path, read_record, stage_folders
from mtnlg_data.files import read_small, sha256, write_json

from .url_files import RemoteFile, find_file, list_files
from .urls import EXTRAS, Url, connect, persist

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .urls import Location

LISTS = {"blend.json", "stage.json", "summary.json"}
#: Internal folders of a stage: what it keeps for its reruns, and what it made of its inputs.
NOT_RESULTS = {"state", "documents", "positives", "inputs"}
PROBE = ".mtnlg-data"
IGNORED_REMOTE_FILES = {PROBE, ".gitattributes"}  # the Hub begins each data set with the latter
UPLOADS_AT_A_TIME = 4
RECORD_BYTES = 1 << 30
UPLOADS_A_RECORD = 32  # after so many the record is written, so a kill repeats no more


class Place(NamedTuple):
    """Where a command works, and the URL where it publishes its results, if it does."""

    folder: Path
    url: Url | None

    @classmethod
    def of(cls, out: Location, work: Path | None) -> Place:
        """The place for ``--out`` and ``--work``; for a URL without ``--work``, a folder below the working folder.

        Raises ``Failure`` if the URL cannot be reached, before any work is done.
        """
        if isinstance(out, Path):
            if work is not None:
                raise UsageFailure(f"--work {work} needs an --out that is a URL; {out} is a folder")
            return cls(out, None)
        url = Url(out.rstrip("/"))
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", url.partition("://")[2]).strip("-.")
        place = cls(work or Path(f"mtnlg-data-{slug}"), url)
        check_no_other_files(_record_path(place.folder, url), url)
        _check_writable(url)
        say(f"{url}: uses {place.folder}, and publishes the results when they are complete")
        return place

    def publish(self) -> None:
        """Publish the folder's results, if that was asked for."""
        if self.url is not None:
            with lock_folder(self.folder):
                publish(self.folder, self.url, result_files(self.folder))


def last_stage(folder: Path) -> Path | None:
    """The folder with the last shards of a run or of a single stage; None if there are none."""
    stages = [folder] if read_record(folder) is not None else [path for path, _ in stage_folders(folder)]
    return next((stage for stage in reversed(stages) if _shards(stage)), None)


def result_files(folder: Path) -> list[str]:
    """The names of the results in the folder of a run or of a single stage, sorted."""
    last = last_stage(folder)
    passed = {shard for path in folder.iterdir() if path.is_dir() and path != last for shard in _shards(path)}
    passed |= {manifest_path(shard) for shard in passed}
    names: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in NOT_RESULTS]
        paths = (Path(parent, name) for name in files if not name.startswith(".") and name not in NOT_RESULTS)
        names += [path.relative_to(folder).as_posix() for path in paths if path not in passed]
    return sorted(names)


def _shards(stage: Path) -> list[Path]:
    record = read_record(stage)
    return [] if record is None else record.shard_paths(stage)


def _record_path(folder: Path, url: str) -> Path:
    return folder / ".published" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"


def _check_writable(url: str) -> None:
    """Raise ``Failure`` if the URL is not writable, which otherwise would show only when all work is done."""
    if url.startswith("hf://"):
        return  # where each file is a commit
    system, path = connect(url)

    def attempt() -> None:
        if EXTRAS.get(url.partition("://")[0]) is None:
            system.makedirs(path, exist_ok=True)
        system.pipe_file(f"{path}/{PROBE}", b"mtnlg-data publishes here\n")
        system.rm_file(f"{path}/{PROBE}")

    persist(attempt, url)


def _read_record(record: Path) -> dict[str, list[Any] | None]:
    """The published files: name → size, modification time and SHA-256 of the local file; None during its upload."""
    return dict(json.loads(read_small(record, RECORD_BYTES))) if record.exists() else {}


def check_no_other_files(record: Path, url: str) -> dict[str, RemoteFile]:
    """The files at the URL. Raises ``Failure`` if one is not in this record: it is not ours to replace."""
    remote = list_files(url, missing_ok=True)
    if others := [name for name in remote if name not in {*_read_record(record), *IGNORED_REMOTE_FILES}]:
        raise Failure(
            f"{url}: holds {len(others)} files that were not published from {record.parents[1]}, such as "
            f"{others[0]}; give another --out, or the --work that they came from"
        )
    return remote


def publish(folder: Path, url: str, names: Iterable[str]) -> int:
    """Upload the files of ``folder`` with these names that are not at ``url`` yet; returns how many those were."""
    path = _record_path(folder, url)
    record, remote, published = _read_record(path), check_no_other_files(path, url), {*names}
    changed = {name for name in published if not _is_published(folder / name, remote.get(name), record.get(name))}
    gone = [name for name in record if name not in published]
    if not (changed or gone):
        say(f"{url}: already has all {len(published)} files")
        return 0
    system, root = connect(url)
    lists = {name for name in published if Path(name).name in LISTS}
    old_lists = [name for name in remote if Path(name).name in LISTS]
    record.update(dict.fromkeys(changed))  # before the first upload: what a kill leaves is ours
    write_json(path, record)
    for name in dict.fromkeys([*old_lists, *gone]):
        if name in remote:
            persist(lambda name=name: system.rm_file(f"{root}/{name}"), f"{url}/{name}")  # type: ignore[misc]
        record.pop(name, None)
    data = sorted(changed - lists)

    def upload(name: str) -> None:
        record[name] = _upload(system, folder / name, f"{root}/{name}", f"{url}/{name}")

    with progress(f"publish {url}", len(data) + len(lists), "files") as advance:
        for part in (data, sorted(lists)):  # the lists when all that they name is there
            with ThreadPoolExecutor(UPLOADS_AT_A_TIME) as threads:
                try:
                    for number, _ in enumerate(threads.map(upload, part), 1):
                        advance(1)
                        if number % UPLOADS_A_RECORD == 0:
                            write_json(path, dict(record))
                finally:
                    threads.shutdown(cancel_futures=True)
                    write_json(path, record)
    say(f"{url}: {len(data) + len(lists)} of {len(published)} files published")
    return len(data) + len(lists)


def _is_published(local: Path, remote: RemoteFile | None, recorded: list[Any] | None) -> bool:
    """Whether the file has the bytes that were published, even if it has been written again."""
    if remote is None or recorded is None:
        return False
    (size, changed_ns, digest), status = recorded, local.stat()
    if not status.st_size == size == remote.size:
        return False
    return bool(status.st_mtime_ns == changed_ns or sha256(local) == digest)


def _upload(system: Any, local: Path, path: str, url: str) -> list[Any]:  # noqa: ANN401  (fsspec has no types)
    """Upload a file; returns its entry in the record."""
    status = local.stat()

    def attempt() -> None:
        if url.partition("://")[0] not in EXTRAS:  # object stores have no folders, and s3fs would make a bucket
            system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.put_file(str(local), path)

    persist(attempt, url)
    if (size := find_file(url).size) != status.st_size:
        raise Failure(f"{url}: has {size} bytes where {status.st_size} were sent; run the same command again")
    return [status.st_size, status.st_mtime_ns, sha256(local)]
