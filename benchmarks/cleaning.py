# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "ftfy==6.3.1"]
# ///
"""Repairing Unicode: mtnlg_data's ``fix_text`` against ``ftfy.fix_text``, one core, with the same text.

    python benchmarks/cleaning.py DATA [--rounds 7] [--out FILE]

DATA holds web/cc_en_head-0091.jsonl.gz, extraction/html/*.html.gz and near_duplicates/*.train. Four corpora: texts of
an English crawl; our extraction of article pages; news articles; and the first corpus garbled on purpose, UTF-8 read as
Windows-1252, where every line needs ftfy. The claimed ratio is that of the first two together.
"""

from __future__ import annotations

import gzip
import json
import statistics
from typing import TYPE_CHECKING, Any

import ftfy

from mtnlg_data.extract.boilerplate import BoilerplateSettings, main_text
from mtnlg_data.extract.paragraphs import read_page
from mtnlg_data.mojibake import fix_text
from record import articles, megabytes_of, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from pathlib import Path

CLAIMED = ("crawl", "extracted")
REPEATS = 20  # of ours where nothing is broken: one is too short to time


def read_corpora(data: Path) -> dict[str, list[str]]:
    """Return the texts of every corpus."""
    lines = gzip.decompress((data / "web" / "cc_en_head-0091.jsonl.gz").read_bytes()).splitlines()
    crawl = [json.loads(line)["text"] for line in lines]
    pages = (gzip.decompress(path.read_bytes()).decode() for path in sorted(data.glob("extraction/html/*.html.gz")))
    return {
        "crawl": crawl,
        "extracted": [main_text(read_page(page), BoilerplateSettings()) for page in pages],
        "articles": articles(next(iter(data.glob("near_duplicates/*.train")))),
        "broken": [text.encode().decode("cp1252", "ignore") for text in crawl],
    }


def measure(data: Path, rounds: int = 7) -> dict[str, Any]:
    """Repair every corpus by both."""
    corpora = read_corpora(data)
    times: dict[str, tuple[list[float], list[float]]] = {}
    for name, texts in corpora.items():
        repeated = texts * (1 if name == "broken" else REPEATS)
        sides = {
            "ours": lambda texts=repeated: [*map(fix_text, texts)],
            "theirs": lambda texts=texts: [*map(ftfy.fix_text, texts)],
        }
        seconds = time_rounds(sides, rounds)
        times[name] = seconds["theirs"], [each * len(texts) / len(repeated) for each in seconds["ours"]]
    theirs, ours = (
        [sum(parts) for parts in zip(*(times[name][side] for name in CLAIMED), strict=True)] for side in (0, 1)
    )
    return {
        "ratio": spread(ratios(theirs, ours)),
        "ratios": {name: round(statistics.median(ratios(*both)), 2) for name, both in times.items()},
        "texts_equal_to_ftfy": {
            name: sum(fix_text(text) == ftfy.fix_text(text) for text in texts) for name, texts in corpora.items()
        },
        "texts": {name: len(texts) for name, texts in corpora.items()},
        "megabytes": {name: round(megabytes_of(texts), 3) for name, texts in corpora.items()},
        "seconds_of_one_core": {
            name: dict(zip(("ftfy", "mtnlg_data"), both, strict=True)) for name, both in times.items()
        },
    }


if __name__ == "__main__":
    run(measure, __doc__)
