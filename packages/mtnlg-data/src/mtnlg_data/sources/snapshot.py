"""A snapshot of Common Crawl by its name: the listing of its WARC files, then the files, into a folder.

    DIR/warc.paths.gz                                  the listing, as the base has it
    DIR/segments/1606141163411.0/warc/….warc.gz        files, at their place below ``crawl-data/NAME/``, with manifests

Files land one by one, whole and in the order of the listing, so a curation may begin with those that are there. What a
listing names outside its snapshot's folder is refused, never fetched.
"""

from __future__ import annotations

import gzip
import re
import time
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TYPE_CHECKING, Any

from mtnlg_data.console import Failure, UsageFailure, progress, say
from mtnlg_data.engine import at_work_in

from .download import Transient, fetch_file, has_landed
from .remotes import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from .download import Base, Landed

COMMON_CRAWL = "https://data.commoncrawl.org"
LISTING = "warc.paths.gz"
NAME = re.compile(r"CC-MAIN-\d{4}(-\d{2,4})?")
SUFFIXES = (".warc.gz", ".arc.gz")
LONGEST_LINE = 1024
MOST_LINES = 1_000_000  # a snapshot has fewer than 100,000 files
NAMED = 20  # of the files that failed or were refused


def fetch(
    snapshot: str,
    out: Path,
    base: Base,
    *,
    files: int | None = None,
    workers: int = 4,
    verify: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Fetch the listing and the first ``files`` files of a snapshot, or all; returns what landed, failed, was refused.

    A file that is there already is left alone; with ``verify`` it is read again. ``wait`` is how it waits between
    attempts. Raises ``Failure`` where there is no listing, and where another process fetches into ``out``; a file that
    cannot be had costs that file.
    """
    if not NAME.fullmatch(snapshot):
        raise UsageFailure(f"{snapshot}: no name of a snapshot, such as CC-MAIN-2020-50")
    with at_work_in(out, snapshot, shared=False):
        return _fetch(snapshot, out, base, files, workers, verify=verify, wait=wait)


def _fetch(
    snapshot: str,
    out: Path,
    base: Base,
    files: int | None,
    workers: int,
    *,
    verify: bool,
    wait: Callable[[float], None],
) -> dict[str, Any]:
    stop = Event()
    listing = out / LISTING
    fetch_file(base, f"crawl-data/{snapshot}/{LISTING}", listing, wait=wait, stop=stop, verify=verify)
    paths, refused = read_listing(listing, snapshot)
    wanted = paths[:files]
    told: dict[str, Any] = {"snapshot": snapshot, "base": base.name, "listed": len(paths) + len(refused)}
    told |= {"wanted": len(wanted), "fetched": 0, "kept": 0, "bytes": 0, "failed": [], "refused": refused[:NAMED]}

    def one(path: str) -> Landed:
        whole = f"crawl-data/{snapshot}/{path}"
        return fetch_file(base, whole, out / path, wait=wait, stop=stop, verify=verify)

    with ThreadPoolExecutor(workers) as pool, progress(f"fetch {snapshot}", len(wanted), "files") as advance:
        futures = {pool.submit(one, path): path for path in wanted}
        began = time.monotonic()
        new = 0
        try:
            for future in as_completed(futures):
                result = _result(future, out / futures[future], told)
                if result is not None:
                    told["fetched" if result.is_new else "kept"] += 1
                    told["bytes"] += result.size
                    new += result.size * result.is_new
                advance(1, f"{new / 1e6 / max(1e-3, time.monotonic() - began):.1f} MB/s")
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    for line in refused[:NAMED]:
        say(f"warning: {listing}: refused {line['path']!r}: {line['why']}")
    return told


def _result(future: Future[Landed], target: Path, told: dict[str, Any]) -> Landed | None:
    """What a file's fetching ended in; a failure of the base costs that file, one of this machine ends the run."""
    try:
        return future.result()
    except (Failure, Transient) as error:
        told["failed"].append({"path": str(target), "why": str(error)})
        return None
    except OSError as error:
        raise Failure(f"{target}: {error.strerror or error}; the same command goes on from here") from error


def read_listing(listing: Path, snapshot: str | None = None) -> tuple[list[str], list[dict[str, str]]]:
    """The paths of a listing below its snapshot's folder, in order, and the lines that are refused with the reasons."""
    paths: dict[str, None] = {}
    refused: list[dict[str, str]] = []
    for line in _lines(listing):
        start = f"crawl-data/{snapshot or '/'.join(line.split('/')[1:2])}/"
        why = refusal(line)
        if why is None and not line.startswith(start):
            why = f"it is not below {start}"
        if why is None and not line.endswith(SUFFIXES):
            why = f"it does not end in {' or '.join(SUFFIXES)}"
        if why is None:
            paths[line.removeprefix(start)] = None
        else:
            refused.append({"path": line[:200], "why": why})
    return list(paths), refused


def _lines(listing: Path) -> Iterator[str]:
    """The lines of a listing, of bounded length and number. Raises ``Failure`` where it is no listing."""
    try:
        with gzip.open(listing, "rb") as file:
            for number in range(MOST_LINES + 1):
                line = file.readline(LONGEST_LINE + 1)
                if not line:
                    return
                if len(line) > LONGEST_LINE or number == MOST_LINES:
                    raise Failure(f"{listing}: line {number + 1} is too long, or one too many, for a listing of files")
                if text := line.decode("ascii", "backslashreplace").strip():
                    yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Failure(f"{listing}: {error}; remove it, and fetch again") from None


def landed_files(folder: Path) -> list[tuple[str, Path]]:
    """The files of a snapshot that lie in its folder whole, in the order of the listing, each with its name there.

    None where nothing was fetched into the folder yet.
    """
    listing = folder / LISTING
    paths = read_listing(listing)[0] if listing.exists() else []
    return [(path, folder / path) for path in paths if has_landed(folder / path)]
