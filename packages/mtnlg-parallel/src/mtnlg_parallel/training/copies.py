"""Copies a run's checkpoints to an object store (``train.copy_to``), and fetches them to resume or start from.

A checkpoint is written to the local folder first, then copied by a thread of rank 0 while training continues. Until it
is copied, a lease keeps it from being removed. A file is sent only if its checksum matches the manifest, and compared
with the store's copy afterwards; the manifest is sent last, so a partial copy is not a checkpoint. Failures are printed
and retried, and never end the run. Checkpoints at the URL are never removed.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from mtnlg_data.transfer.url_files import list_files, read_url
from mtnlg_data.transfer.urls import EXTRAS, TransientError, Url, connect, persist
from mtnlg_model.checkpoint.lease import lease
from mtnlg_model.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    file_checksum,
    latest,
    list_checkpoints,
    parse_manifest,
    read_manifest_bytes,
)
from mtnlg_model.console import UsageFailure, error_line, say
from mtnlg_model.files import atomic_open, open_regular, sync_directory

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_model.checkpoint.manifest import Manifest

CHUNK_BYTES: Final = 1 << 24
FILES_AT_A_TIME: Final = 4
PAUSE: Final = 60.0
"""Seconds until a failed copy is retried, in addition to the retries of each file."""


class Copies:
    """Copies the checkpoints of ``directory`` to ``url`` in a thread: those present now, and each that is added."""

    def __init__(self, directory: Path, url: str) -> None:
        self._url, self._queue, self._closing = Url(url), SimpleQueue[Any](), Event()
        self._missing: list[Path] = []
        for _, folder in list_checkpoints(directory):
            self.add(folder)
        self._thread = Thread(target=self._run, name="copies", daemon=True)
        self._thread.start()

    def add(self, folder: Path) -> None:
        """Queue a checkpoint to be copied; it is not removed until then."""
        self._missing.append(folder)
        self._queue.put((folder, lease(folder)))

    def close(self, seconds: float) -> None:
        """Wait, for at most ``seconds``, until all checkpoints are copied; prints which are not."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(seconds)
        if self._missing:
            names = ", ".join(folder.name for folder in self._missing)
            say(f"WARNING: {self._url}: {names} not copied; the run copies them when it goes on")

    def _run(self) -> None:
        while item := self._queue.get():
            (folder, held), said = item, ""
            with held:
                while True:
                    try:
                        upload(folder, self._url / folder.name)
                        self._missing.remove(folder)
                        break
                    except Exception as error:  # noqa: BLE001  (of any driver)
                        if said != (said := error_line(error)):
                            say(f"WARNING: {folder.name} is not copied yet: {said}")
                    if self._closing.wait(PAUSE):
                        break


def upload(folder: Path, url: Url) -> None:
    """Copy a checkpoint to ``url``, unless it is there. Raises ``Failure`` if that is impossible."""
    raw = read_manifest_bytes(folder)
    manifest, (system, root) = parse_manifest(folder, raw), connect(url)
    path = f"{root}/{MANIFEST}"
    if persist(lambda: system.exists(path), url) and persist(lambda: system.cat_file(path), url) == raw:
        return

    def send(name: str) -> None:
        local, remote = folder / name, f"{root}/{name}"
        system.put_file(str(local), remote)
        if not _equal(system, remote, local):
            raise TransientError("the store's bytes differ from those sent")

    def check_and_send(name: str) -> None:
        if file_checksum(folder / name) != manifest.files[name].checksum:
            raise CheckpointError(f"{folder / name}: damaged: its checksum is not that of {MANIFEST}")
        persist(partial(send, name), url / name)

    def begin() -> None:
        if url.partition("://")[0] not in EXTRAS:  # object stores have no folders
            system.makedirs(root, exist_ok=True)
        if system.exists(path):  # of another run of this step, since rolled back
            system.rm_file(path)

    persist(begin, url)
    _in_threads(check_and_send, manifest)
    persist(lambda: system.pipe_file(path, raw), url)


def download(url: Url, directory: Path) -> Path:
    """Download the checkpoint at ``url`` into ``directory`` and check it; returns its folder."""
    folder, raw, (system, root) = directory / f"{url.name}.tmp", read_url(url / MANIFEST), connect(url)
    manifest = parse_manifest(folder, raw)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def receive(name: str) -> None:
        system.get_file(f"{root}/{name}", str(folder / name))
        if file_checksum(folder / name) != manifest.files[name].checksum:
            raise TransientError(f"its checksum is not that of {MANIFEST}")

    say(f"{url}: copied to {directory}")
    _in_threads(lambda name: persist(partial(receive, name), url / name), manifest)
    with atomic_open(folder / MANIFEST) as file:
        file.write(raw)
    final = folder.rename(directory / url.name)
    sync_directory(directory)
    return final


def fetch_newest(url: str, directory: Path, resume: bool = True) -> None:
    """Download the newest checkpoint at ``url``, if any, into ``directory``, if that has none.

    Raises ``UsageFailure`` if there is one at ``url`` but the run must not ``resume``.
    """
    connect(url)
    if resume and latest(directory):
        return
    names = (name.partition("/") for name in list_files(url, missing_ok=True))
    steps = [int(step.removeprefix("step-")) for step, _, file in names if file == MANIFEST]
    if steps and not resume:
        raise UsageFailure(f"{url}: holds checkpoints of another run; remove them, or give another train.copy_to")
    if steps:
        download(Url(url) / f"step-{max(steps)}", directory)


def _equal(system: Any, remote: str, local: Path) -> bool:  # noqa: ANN401  (fsspec has no types)
    with system.open(remote) as theirs, open_regular(local) as ours:
        while chunk := ours.read(CHUNK_BYTES):
            if theirs.read(len(chunk)) != chunk:
                return False
        return not theirs.read(1)


def _in_threads(work: Any, manifest: Manifest) -> None:  # noqa: ANN401  (a function of a file's name)
    with ThreadPoolExecutor(FILES_AT_A_TIME, "copies") as threads:
        for _ in threads.map(work, manifest.files):
            pass
