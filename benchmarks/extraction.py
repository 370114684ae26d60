# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "justext==3.0.2", "resiliparse==2.0.1"]
# ///
"""The text of HTML pages: mtnlg_data against jusText, one core, with the same text byte for byte.

    python benchmarks/extraction.py DATA [FOLDER ...] [--every 4] [--rounds 7] [--out FILE]

DATA holds extraction/**/*.html* and web/**/*.warc*; the folders hold other HTML files, such as manuals. First, the
texts of all pages are compared with jusText's, by origin. Then every fourth page is timed. Both sides turn decoded
pages into the paragraphs that are not boilerplate; resiliparse, which a recipe may choose instead, extracts other
texts. "step" is all that the step extract does with a page: it decodes bytes, finds the language and extracts the text.
"""

from __future__ import annotations

import gzip
import statistics
from functools import partial
from typing import TYPE_CHECKING

import justext
from lxml.etree import ParserError
from resiliparse.extract.html2text import extract_plain_text

from mtnlg_data.extract.boilerplate import BoilerplateSettings, main_text
from mtnlg_data.extract.charset import decode_html
from mtnlg_data.extract.paragraphs import read_page
from mtnlg_data.extract.text import ExtractSettings, extract_record
from mtnlg_data.sources import Record, SourceFile, read_records
from record import megabytes_of, rates, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

SETTINGS, ANY_LANGUAGE = BoilerplateSettings(), ExtractSettings(languages=())
STOP_WORDS = justext.get_stoplist("English")


LARGEST = 2_000_000  # bytes of a page


def read_pages(data: Path, folders: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Return every page by its origin and name, decoded."""
    files = [SourceFile("web", path, path.name, "warc") for path in sorted(data.glob("web/**/*.warc*"))]
    records = [record for file in files for record in read_records(file) if isinstance(record, Record)]
    crawled = {str(n): decode_html(r.content, r.charset) for n, r in enumerate(records) if isinstance(r.content, bytes)}
    pages = {"crawled": crawled}
    for folder in (*sorted(data.glob("extraction/*/")), *folders):
        found = [path for path in sorted(folder.rglob("*.htm*")) if path.is_file() and path.stat().st_size < LARGEST]
        raw = ((path, gzip.open if path.suffix == ".gz" else open) for path in found)
        pages[folder.name] = {str(path.relative_to(folder)): decode_html(_read(path, how), None) for path, how in raw}
    return pages


def _read(path: Path, how: Callable[..., Any]) -> bytes:
    with how(path, "rb") as file:
        return bytes(file.read())


def ours(page: str) -> str:
    """Extract by mtnlg_data."""
    return main_text(read_page(page), SETTINGS)


def step(page: str) -> str:
    """Do what the step does with a page in UTF-8."""
    record = Record(number=0, content=page.encode(errors="replace"), charset="utf-8")
    return extract_record(record, ANY_LANGUAGE).text


def theirs(page: str) -> str:
    """Extract by jusText."""
    return "\n\n".join(
        paragraph.text for paragraph in justext.justext(page, STOP_WORDS) if not paragraph.is_boilerplate
    )


def by_resiliparse(page: str) -> str:
    """Extract by resiliparse."""
    return str(extract_plain_text(page, main_content=True))


def same_text(page: str) -> bool:
    """Whether both find the same text."""
    try:
        return theirs(page) == ours(page)
    except (AssertionError, ParserError, ValueError):  # where the package fails
        return True


EXTRACTORS: dict[str, Callable[[str], object]] = {
    "mtnlg_data": ours,
    "step": step,
    "justext": theirs,
    "resiliparse": by_resiliparse,
}


def measure(data: Path, *folders: Path, every: int = 4, rounds: int = 7) -> dict[str, Any]:
    """Compare all pages, also of other ``folders``; time one of so many."""
    by_origin = read_pages(data, folders)
    differing = {origin: [n for n, page in pages.items() if not same_text(page)] for origin, pages in by_origin.items()}
    pages = [page for pages in by_origin.values() for page in pages.values()]
    timed = pages[::every]

    def extract_all(extract: Callable[[str], object]) -> None:
        for page in timed:
            extract(page)

    seconds = time_rounds({name: partial(extract_all, extract) for name, extract in EXTRACTORS.items()}, rounds)
    to_justext = {name: ratios(seconds["justext"], each) for name, each in seconds.items()}
    return {
        "ratio": spread(to_justext["mtnlg_data"]),
        "ratios_to_justext": {name: round(statistics.median(each), 2) for name, each in to_justext.items()},
        "megabytes_per_second": rates(megabytes_of(timed), seconds),
        "step_against_resiliparse": spread(ratios(seconds["resiliparse"], seconds["step"])),
        "pages_equal_to_justext": len(pages) - sum(map(len, differing.values())),
        "pages": len(pages),
        "pages_by_origin": {origin: len(pages) for origin, pages in by_origin.items()},
        "differing": {origin: names for origin, names in differing.items() if names},
        "pages_timed": len(timed),
        "megabytes": round(megabytes_of(timed), 3),
        "seconds_of_one_core": seconds,
    }


if __name__ == "__main__":
    run(measure, __doc__)
