# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "justext==3.0.2", "resiliparse==2.0.1", "trafilatura==2.3.1"]
# ///
"""The text of HTML pages: mtnlg_data against jusText, one core, with the same text byte for byte.

    python benchmarks/extraction.py DATA [--rounds 7] [--out FILE]

DATA holds extraction/html/*.html.gz and web/**/*.warc*. Both sides take decoded pages and give the paragraphs that are
no boilerplate. Every paragraph, its class alone and its final class are compared first. resiliparse and trafilatura,
which a recipe may choose instead, give other texts; they run in the same rounds for what they cost.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import justext
import trafilatura
from resiliparse.extract.html2text import extract_plain_text

from mtnlg_data.extract.boilerplate import BoilerplateSettings, classes_of, main_text, revised
from mtnlg_data.extract.charset import decode
from mtnlg_data.extract.paragraphs import read_page
from mtnlg_data.sources import Record, SourceFile, read_records
from record import conditions, keep

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = BoilerplateSettings()
STOP_WORDS = justext.get_stoplist("English")


def pages_of(data: Path) -> list[str]:
    """Every page, decoded: articles, and what crawl files hold of HTML."""
    pages = [gzip.decompress(path.read_bytes()).decode() for path in sorted(data.glob("extraction/html/*.html.gz"))]
    files = [SourceFile("web", path, path.name, "warc") for path in sorted(data.glob("web/**/*.warc*"))]
    records = [record for file in files for record in read_records(file) if isinstance(record, Record)]
    return pages + [decode(record.content, record.charset) for record in records if isinstance(record.content, bytes)]


def ours(page: str) -> str:
    """The page's text by mtnlg_data."""
    return main_text(read_page(page).paragraphs, SETTINGS)


def theirs(page: str) -> str:
    """The page's text by jusText."""
    return "\n\n".join(
        paragraph.text for paragraph in justext.justext(page, STOP_WORDS) if not paragraph.is_boilerplate
    )


def by_resiliparse(page: str) -> str:
    """The page's text by resiliparse."""
    return str(extract_plain_text(page, main_content=True))


def by_trafilatura(page: str) -> str:
    """The page's text by trafilatura."""
    return trafilatura.extract(page, fast=True) or ""


def same(page: str) -> bool:
    """Whether both see the same paragraphs, of the same classes."""
    paragraphs = read_page(page).paragraphs
    alone = classes_of(paragraphs, SETTINGS)
    final = revised(paragraphs, alone, SETTINGS)
    found = [(each.text, one, other) for each, one, other in zip(paragraphs, alone, final, strict=True)]
    return found == [(each.text, each.cf_class, each.class_type) for each in justext.justext(page, STOP_WORDS)]


WAYS: dict[str, Callable[[str], str]] = {
    "mtnlg_data": ours,
    "justext": theirs,
    "resiliparse": by_resiliparse,
    "trafilatura": by_trafilatura,
}


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pages = pages_of(options.data)
    megabytes = sum(len(page.encode(errors="replace")) for page in pages) / 1e6
    about = conditions("mtnlg-data", "justext", "lxml", "resiliparse", "trafilatura")
    equal = sum(map(same, pages))
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(options.rounds):
        for name in sorted(WAYS, reverse=bool(number % 2)):
            started = time.process_time()
            for page in pages:
                WAYS[name](page)
            seconds[name].append(time.process_time() - started)
    ratios = {
        name: [one / other for one, other in zip(seconds["justext"], of, strict=True)] for name, of in seconds.items()
    }
    result = {
        "ratio": round(statistics.median(ratios["mtnlg_data"]), 2),
        "ratio_spread": [round(min(ratios["mtnlg_data"]), 2), round(max(ratios["mtnlg_data"]), 2)],
        "ratios_to_justext": {name: round(statistics.median(of), 2) for name, of in ratios.items()},
        "megabytes_per_second": {name: round(megabytes / statistics.median(of), 2) for name, of in seconds.items()},
        "pages_equal_to_justext": equal,
        "pages": len(pages),
        "megabytes": round(megabytes, 3),
        "seconds_of_one_core": seconds,
        **about,
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
