# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "justext==3.0.2", "resiliparse==2.0.1", "trafilatura==2.3.1"]
# ///
"""The text of HTML pages: mtnlg_data against jusText, one core, with the same text byte for byte.

    python benchmarks/extraction.py DATA [--rounds 7] [--out FILE]

DATA holds extraction/html/*.html.gz and web/**/*.warc*. Both sides turn decoded pages into the paragraphs that are not
boilerplate. First, every paragraph and its context-free and final classes are compared. resiliparse and trafilatura,
which a recipe may choose instead, extract other texts; they run in the same rounds to show their cost.
"""

from __future__ import annotations

import gzip
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import justext
import trafilatura
from resiliparse.extract.html2text import extract_plain_text

from mtnlg_data.extract.boilerplate import BoilerplateSettings, classify, main_text, revise_classes
from mtnlg_data.extract.charset import decode_html
from mtnlg_data.extract.paragraphs import read_page
from mtnlg_data.sources import Record, SourceFile, read_records
from record import claimed_ratio, conditions, option_parser, rates, ratios, time_rounds, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = BoilerplateSettings()
STOP_WORDS = justext.get_stoplist("English")


def read_pages(data: Path) -> list[str]:
    """Return every page, decoded: articles, and the HTML of crawl files."""
    pages = [gzip.decompress(path.read_bytes()).decode() for path in sorted(data.glob("extraction/html/*.html.gz"))]
    files = [SourceFile("web", path, path.name, "warc") for path in sorted(data.glob("web/**/*.warc*"))]
    records = [record for file in files for record in read_records(file) if isinstance(record, Record)]
    return pages + [
        decode_html(record.content, record.charset) for record in records if isinstance(record.content, bytes)
    ]


def ours(page: str) -> str:
    """Extract by mtnlg_data."""
    return main_text(read_page(page).paragraphs, SETTINGS)


def theirs(page: str) -> str:
    """Extract by jusText."""
    return "\n\n".join(
        paragraph.text for paragraph in justext.justext(page, STOP_WORDS) if not paragraph.is_boilerplate
    )


def by_resiliparse(page: str) -> str:
    """Extract by resiliparse."""
    return str(extract_plain_text(page, main_content=True))


def by_trafilatura(page: str) -> str:
    """Extract by trafilatura."""
    return trafilatura.extract(page, fast=True) or ""


def same_classes(page: str) -> bool:
    """Whether both find the same paragraphs, of the same classes."""
    paragraphs = read_page(page).paragraphs
    context_free = classify(paragraphs, SETTINGS)
    final = revise_classes(paragraphs, context_free, SETTINGS)
    classes = zip((each.text for each in paragraphs), context_free, final, strict=True)
    return list(classes) == [(each.text, each.cf_class, each.class_type) for each in justext.justext(page, STOP_WORDS)]


EXTRACTORS: dict[str, Callable[[str], str]] = {
    "mtnlg_data": ours,
    "justext": theirs,
    "resiliparse": by_resiliparse,
    "trafilatura": by_trafilatura,
}


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__, rounds=7)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    pages = read_pages(options.data)
    megabytes = sum(len(page.encode(errors="replace")) for page in pages) / 1e6
    about = conditions("mtnlg-data", "justext", "lxml", "resiliparse", "trafilatura")
    equal = sum(map(same_classes, pages))

    def extract_all(extract: Callable[[str], str]) -> None:
        for page in pages:
            extract(page)

    sides = {name: partial(extract_all, extract) for name, extract in EXTRACTORS.items()}
    seconds = time_rounds(sides, options.rounds)
    to_justext = {name: ratios(seconds["justext"], each) for name, each in seconds.items()}
    result = {
        **claimed_ratio(to_justext["mtnlg_data"], 2),
        "ratios_to_justext": {name: round(statistics.median(each), 2) for name, each in to_justext.items()},
        "megabytes_per_second": rates(megabytes, seconds),
        "pages_equal_to_justext": equal,
        "pages": len(pages),
        "megabytes": round(megabytes, 3),
        "seconds_of_one_core": seconds,
        **about,
    }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
