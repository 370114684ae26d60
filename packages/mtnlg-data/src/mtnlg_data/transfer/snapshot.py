"""Download a Common Crawl snapshot by name: the listing of its WARC files, then the files, into a folder.

    DIR/warc.paths.gz                                  the listing
    DIR/segments/1606141163411.0/warc/….warc.gz        files, as below ``crawl-data/NAME/``

Files are completed one by one, so a curation may begin with those that are there. A listing's paths outside the
snapshot's folder are refused and never downloaded.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtnlg_data.console import Failure, UsageFailure, say
from mtnlg_data.engine import lock_folder
from mtnlg_data.files import open_regular

from .url_files import FetchRecord, fetch_files, find_file
from .urls import Url, location

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMON_CRAWL = "https://data.commoncrawl.org"
LISTING = "warc.paths.gz"
SNAPSHOT_NAME = re.compile(r"CC-MAIN-\d{4}(-\d{2,4})?")
CRAWL_SUFFIXES = (".warc.gz", ".arc.gz")
#: Parts of letters, digits and . _ + = -, none of which begins with a dot or is too long for a file system.
_PART = r"[A-Za-z0-9_+=-][A-Za-z0-9._+=-]{0,199}"
SAFE_PATH = re.compile(f"{_PART}(/{_PART})*")
MAX_LINE_BYTES = 1024
MAX_LINES = 1_000_000  # a snapshot has fewer than 100,000 files
#: Maximum bytes of a file, and of the listing; in Common Crawl a file has one gigabyte, and the listing some 200 kB.
LARGEST_FILE, LARGEST_LISTING = 8 << 30, 64 << 20
MAX_NAMED = 20  # refused lines named in the summary


def fetch_snapshot(
    snapshot: str,
    out: Path,
    base: str = COMMON_CRAWL,
    *,
    files: int | None = None,
    workers: int = 4,
    largest: int = LARGEST_FILE,
    verify: bool = False,
) -> dict[str, Any]:
    """Download the listing and the first ``files`` files of a snapshot (None: all); returns counts and failures.

    ``base`` is a URL, or a folder that mirrors one. Complete files are kept; ``verify`` reads them again. A file that
    cannot be downloaded, or has more than ``largest`` bytes, costs only itself. Raises ``Failure`` without a listing,
    and while another process fetches into ``out``.
    """
    if not SNAPSHOT_NAME.fullmatch(snapshot):
        raise UsageFailure(f"{snapshot}: not the name of a snapshot, such as CC-MAIN-2020-50")
    place = location(base)
    if isinstance(place, Path):
        if not place.is_dir():
            raise Failure(f"{base}: no such folder")
        place = Url(f"file://{place.absolute()}")
    root = place / "crawl-data" / snapshot
    if not (out / LISTING).exists():
        find_file(f"{root}/{LISTING}")  # so that a wrong name leaves nothing behind
    with lock_folder(out):
        fetch_files({LISTING: f"{root}/{LISTING}"}, out, verify=verify, largest=LARGEST_LISTING)
        paths, refused = read_listing(out / LISTING, snapshot)
        done = fetch_files(
            {path: f"{root}/{path}" for path in paths[:files]},
            out,
            workers=workers,
            label=f"fetch {snapshot}",
            verify=verify,
            largest=largest,
            keep_going=True,
        )
    for line in refused[:MAX_NAMED]:
        say(f"warning: {out / LISTING}: refused {line['path']!r}: {line['why']}")
    return {
        "snapshot": snapshot,
        "base": base,
        "listed": len(paths) + len(refused),
        "wanted": len(paths[:files]),
        "fetched": done.fetched,
        "kept": done.kept,
        "bytes": done.size,
        "failed": [{"path": str(out / name), "why": why} for name, why in done.failed.items()],
        "refused": refused[:MAX_NAMED],
    }


def read_listing(listing: Path, snapshot: str | None = None) -> tuple[list[str], list[dict[str, str]]]:
    """Paths of a listing relative to the snapshot's folder, in order, and the refused lines with reasons."""
    paths: dict[str, None] = {}
    refused: list[dict[str, str]] = []
    for line in _read_lines(listing):
        folder = f"crawl-data/{snapshot or '/'.join(line.split('/')[1:2])}/"
        if not SAFE_PATH.fullmatch(line):
            why = "not a plain path: parts of 1 to 200 characters of A-Z a-z 0-9 . _ + = - without a dot in front"
        elif not line.startswith(folder):
            why = f"not below {folder}"
        elif not line.endswith(CRAWL_SUFFIXES):
            why = f"it does not end in {' or '.join(CRAWL_SUFFIXES)}"
        else:
            paths[line.removeprefix(folder)] = None
            continue
        refused.append({"path": line[:200], "why": why})
    return list(paths), refused


def _read_lines(listing: Path) -> Iterator[str]:
    """Yield the lines of a listing. Raises ``Failure`` for broken gzip, a line too long and too many lines."""
    try:
        with open_regular(listing, follow=True) as packed, gzip.GzipFile(fileobj=packed) as file:
            for number in range(MAX_LINES + 1):
                line = file.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                if len(line) > MAX_LINE_BYTES or number == MAX_LINES:
                    raise Failure(f"{listing}: line {number + 1} exceeds the limits of a listing of files")
                if text := line.decode("ascii", "backslashreplace").strip():
                    yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Failure(f"{listing}: {error}; remove it, and fetch again") from None


def downloaded_files(folder: Path) -> list[tuple[str, Path]]:
    """Name and path of every complete file in a snapshot's folder, in the order of the listing; empty without one."""
    listing = folder / LISTING
    paths, copies = read_listing(listing)[0] if listing.exists() else [], FetchRecord(folder).copies
    whole = (path for path in paths if path in copies and (folder / path).exists())
    return [(path, folder / path) for path in whole if (folder / path).stat().st_size == copies[path].size]
