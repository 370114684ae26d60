"""Download a Common Crawl snapshot by name: the listing of its WARC files, then the files, into a folder.

    DIR/warc.paths.gz                                  the listing
    DIR/segments/1606141163411.0/warc/….warc.gz        files, as below ``crawl-data/NAME/``, with manifests

Files are completed one by one, so a curation may begin with those that are there. A listing's paths outside the
snapshot's folder are refused and never downloaded.
"""

from __future__ import annotations

import errno
import gzip
import re
import time
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

from mtnlg_data.console import MISTAKES, Failure, IoFailure, UsageFailure, progress, say
from mtnlg_data.engine import lock_folder

from .download import TransientError, download_file, is_downloaded
from .remotes import unsafe_path_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from .download import Downloaded, Remote

COMMON_CRAWL = "https://data.commoncrawl.org"
LISTING = "warc.paths.gz"
SNAPSHOT_NAME = re.compile(r"CC-MAIN-\d{4}(-\d{2,4})?")
CRAWL_SUFFIXES = (".warc.gz", ".arc.gz")
MAX_LINE_BYTES = 1024
MAX_LINES = 1_000_000  # a snapshot has fewer than 100,000 files
#: Bytes of a file at most: those of Common Crawl have one gigabyte, and the listing has some 200 kB.
LARGEST_FILE, LARGEST_LISTING = 8 << 30, 64 << 20
#: Errors of one path among those of a listing: too long, or with a file where another has a folder.
PATH_ERRORS = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
MAX_NAMED = 20  # refused lines named in the summary


def fetch_snapshot(
    snapshot: str,
    out: Path,
    remote: Remote,
    *,
    files: int | None = None,
    workers: int = 4,
    largest: int = LARGEST_FILE,
    verify: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Download the listing and the first ``files`` files of a snapshot (None: all); returns counts and failures.

    Complete files are kept; ``verify`` reads them again. ``sleep`` waits between attempts. A file that cannot be
    downloaded, or has more than ``largest`` bytes, costs only itself. Raises ``Failure`` without a listing, and while
    another process fetches into ``out``.
    """
    if not SNAPSHOT_NAME.fullmatch(snapshot):
        raise UsageFailure(f"{snapshot}: not the name of a snapshot, such as CC-MAIN-2020-50")
    stop = Event()
    download = partial(download_file, remote, sleep=sleep, stop=stop, verify=verify)
    with lock_folder(out):
        listing = out / LISTING
        download(f"crawl-data/{snapshot}/{LISTING}", listing, largest=LARGEST_LISTING)
        paths, refused = read_listing(listing, snapshot)
        wanted = paths[:files]
        summary: dict[str, Any] = {"snapshot": snapshot, "base": remote.name, "listed": len(paths) + len(refused)}
        summary |= {"wanted": len(wanted), "fetched": 0, "kept": 0, "bytes": 0, "failed": []}
        summary |= {"refused": refused[:MAX_NAMED]}
        with ThreadPoolExecutor(workers) as pool:
            futures = {
                pool.submit(download, f"crawl-data/{snapshot}/{path}", out / path, largest=largest): out / path
                for path in wanted
            }
            try:
                _collect(futures, summary)
            except BaseException:
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        for line in summary["refused"]:
            say(f"warning: {listing}: refused {line['path']!r}: {line['why']}")
    return summary


def _collect(futures: dict[Future[Downloaded], Path], summary: dict[str, Any]) -> None:
    """Add each download to the summary as it ends. Raises ``IoFailure`` for a local error, such as a full disk."""
    start, new_bytes = time.monotonic(), 0
    with progress(f"fetch {summary['snapshot']}", len(futures), "files") as advance:
        for future in as_completed(futures):
            target = futures[future]
            try:
                size, is_new = future.result()
            except (Failure, TransientError) as error:
                summary["failed"].append({"path": str(target), "why": str(error)})
            except OSError as error:
                if error.errno not in PATH_ERRORS:
                    kind = Failure if isinstance(error, MISTAKES) else IoFailure
                    raise kind(f"{target}: {error.strerror or error}; the same command resumes here") from error
                summary["failed"].append({"path": str(target), "why": f"{target}: {error.strerror}"})
            else:
                summary["fetched" if is_new else "kept"] += 1
                summary["bytes"] += size
                new_bytes += size * is_new
            advance(1, f"{new_bytes / 1e6 / max(1e-3, time.monotonic() - start):.1f} MB/s")


def read_listing(listing: Path, snapshot: str | None = None) -> tuple[list[str], list[dict[str, str]]]:
    """Paths of a listing relative to the snapshot's folder, in order, and the refused lines with reasons."""
    paths: dict[str, None] = {}
    refused: list[dict[str, str]] = []
    for line in _read_lines(listing):
        folder = f"crawl-data/{snapshot or '/'.join(line.split('/')[1:2])}/"
        why = unsafe_path_reason(line)
        if why is None and not line.startswith(folder):
            why = f"it is not below {folder}"
        if why is None and not line.endswith(CRAWL_SUFFIXES):
            why = f"it does not end in {' or '.join(CRAWL_SUFFIXES)}"
        if why is None:
            paths[line.removeprefix(folder)] = None
        else:
            refused.append({"path": line[:200], "why": why})
    return list(paths), refused


def _read_lines(listing: Path) -> Iterator[str]:
    """Yield the lines of a listing. Raises ``Failure`` for broken gzip, a line too long and too many lines."""
    try:
        with gzip.open(listing, "rb") as file:
            for number in range(MAX_LINES + 1):
                line = file.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                if len(line) > MAX_LINE_BYTES or number == MAX_LINES:
                    raise Failure(f"{listing}: line {number + 1} is too long, or one too many, for a listing of files")
                if text := line.decode("ascii", "backslashreplace").strip():
                    yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Failure(f"{listing}: {error}; remove it, and fetch again") from None


def downloaded_files(folder: Path) -> list[tuple[str, Path]]:
    """Name and path of every complete file in a snapshot's folder, in the order of the listing; empty without one."""
    listing = folder / LISTING
    paths = read_listing(listing)[0] if listing.exists() else []
    return [(path, folder / path) for path in paths if is_downloaded(folder / path)]
