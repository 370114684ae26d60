# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "justext==3.0.2", "resiliparse==2.0.1", "trafilatura==2.3.1", "turbohtml==1.15.4"]
# ///
"""The text of HTML pages: mtnlg_data against jusText, one core, with the same text byte for byte.

    python benchmarks/extraction.py DATA [--every 4] [--rounds 7] [--out FILE]

DATA holds extraction/**/*.html.gz and web/**/*.warc*. First, the texts of all pages are compared with jusText's, by
origin. Then every fourth page is timed, decoded: mtnlg_data by jusText's rules and by its own ("main"), jusText, and
three libraries that extract other texts, trafilatura in the mode that the step takes. "step" is all that the step
extract does with a page in UTF-8, by jusText's rules or by a library: decode it, find its language, extract the text.
"""

from __future__ import annotations

import gzip
from functools import partial
from typing import TYPE_CHECKING

import justext
import trafilatura
import turbohtml
from lxml.etree import ParserError
from resiliparse.extract.html2text import extract_plain_text

from mtnlg_data.extract.boilerplate import BoilerplateSettings, main_text
from mtnlg_data.extract.charset import decode_html
from mtnlg_data.extract.paragraphs import read_page
from mtnlg_data.extract.text import ExtractSettings, Method, extract_record, extract_text
from mtnlg_data.sources import Record, SourceFile, read_records
from record import megabytes_of, rates, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

SETTINGS, ANY_LANGUAGE = BoilerplateSettings(), ExtractSettings(languages=())
STOP_WORDS = justext.get_stoplist("English")
CHOSEN: tuple[Method, ...] = ("resiliparse", "trafilatura")
"""Libraries that a recipe may choose."""


def read_pages(data: Path) -> dict[str, str]:
    """Return every page by its name, decoded."""
    files = [SourceFile("web", path, path.name, "warc") for path in sorted(data.glob("web/**/*.warc*"))]
    pages = {}
    for number, record in enumerate(record for file in files for record in read_records(file)):
        if isinstance(record, Record) and isinstance(record.content, bytes):
            pages[f"web {number}"] = decode_html(record.content, record.charset)
    for path in sorted(data.glob("extraction/**/*.html.gz")):
        pages[str(path.relative_to(data))] = decode_html(gzip.decompress(path.read_bytes()), None)
    return pages


def ours(page: str) -> str:
    """Extract by mtnlg_data."""
    return main_text(read_page(page), SETTINGS)


def step(page: bytes, settings: ExtractSettings) -> str:
    """Do what the step does with a page in UTF-8."""
    return extract_record(Record(number=0, content=page, charset="utf-8"), settings).text


def theirs(page: str) -> str:
    """Extract by jusText."""
    return "\n\n".join(
        paragraph.text for paragraph in justext.justext(page, STOP_WORDS) if not paragraph.is_boilerplate
    )


def same_text(page: str) -> bool:
    """Whether both find the same text."""
    try:
        return theirs(page) == ours(page)
    except (AssertionError, ParserError, ValueError):  # where the package fails
        return True


EXTRACTORS: dict[str, Callable[[str], object]] = {
    "mtnlg_data": ours,
    "main": lambda page: extract_text("main", page, SETTINGS, "en"),
    "justext": theirs,
    "resiliparse": partial(extract_plain_text, main_content=True),
    "trafilatura": partial(trafilatura.extract, fast=True),
    "turbohtml": lambda page: turbohtml.parse(page).main_text(),
}


def measure(data: Path, every: int = 4, rounds: int = 7) -> dict[str, Any]:
    """Compare all pages; time one of so many."""
    by_name = read_pages(data)
    differing = [name for name, page in by_name.items() if not same_text(page)]
    timed = list(by_name.values())[::every]
    steps = {method: ExtractSettings(languages=(), method=method) for method in ("justext", *CHOSEN)}
    seconds: dict[str, list[float]] = {}
    for pages, times in ((timed[:9], 1), (timed, rounds)):  # the first use imports and loads what is compiled
        encoded = [page.encode(errors="replace") for page in pages]
        sides = {name: partial(_all, extract, pages) for name, extract in EXTRACTORS.items()}
        sides |= {f"step, {name}": partial(_all, partial(step, settings=own), encoded) for name, own in steps.items()}
        seconds = time_rounds(sides, times)
    return {
        "ratio": spread(ratios(seconds["justext"], seconds["mtnlg_data"])),
        "main_against": {name: spread(ratios(seconds[name], seconds["main"])) for name in EXTRACTORS},
        "step_against_resiliparse": spread(ratios(seconds["resiliparse"], seconds["step, justext"])),
        "library_in_step": {name: spread(ratios(seconds[name], seconds[f"step, {name}"])) for name in CHOSEN},
        "megabytes_per_second": rates(megabytes_of(timed), seconds),
        "pages": len(by_name),
        "pages_that_differ_from_justext": differing,
        "pages_timed": len(timed),
        "megabytes": round(megabytes_of(timed), 3),
        "seconds_of_one_core": seconds,
    }


def _all(extract: Callable[[Any], object], pages: list[Any]) -> None:
    for page in pages:
        extract(page)


if __name__ == "__main__":
    run(measure, __doc__)
