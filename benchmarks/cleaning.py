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
import time
from pathlib import Path

import ftfy

from mtnlg_data.extract.boilerplate import BoilerplateSettings, main_text
from mtnlg_data.extract.paragraphs import read_page
from mtnlg_data.mojibake import fix_text
from record import claimed_ratio, conditions, option_parser, ratios, write_result

CLAIMED = ("crawl", "extracted")


def read_corpora(data: Path) -> dict[str, list[str]]:
    """Return the texts of every corpus."""
    lines = gzip.decompress((data / "web" / "cc_en_head-0091.jsonl.gz").read_bytes()).splitlines()
    crawl = [json.loads(line)["text"] for line in lines]
    pages = (gzip.decompress(path.read_bytes()).decode() for path in sorted(data.glob("extraction/html/*.html.gz")))
    extracted = [main_text(read_page(page), BoilerplateSettings()) for page in pages]
    articles = next(iter(data.glob("near_duplicates/*.train"))).read_text(encoding="utf-8").splitlines()
    return {
        "crawl": crawl,
        "extracted": extracted,
        "articles": [line.partition(" ")[2] for line in articles],
        "broken": [text.encode().decode("cp1252", "ignore") for text in crawl],
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__, rounds=7)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    corpora = read_corpora(options.data)
    about = conditions("mtnlg-data", "ftfy")
    equal = {name: sum(fix_text(text) == ftfy.fix_text(text) for text in texts) for name, texts in corpora.items()}
    ways = {"mtnlg_data": fix_text, "ftfy": ftfy.fix_text}
    seconds: dict[str, dict[str, list[float]]] = {corpus: {name: [] for name in ways} for corpus in corpora}
    for number in range(options.rounds):
        for corpus, texts in corpora.items():
            for name in sorted(ways, reverse=bool(number % 2)):
                repeats = 20 if name == "mtnlg_data" and corpus != "broken" else 1  # one of ours is too short to time
                started = time.process_time()
                for _ in range(repeats):
                    for text in texts:
                        ways[name](text)
                seconds[corpus][name].append((time.process_time() - started) / repeats)
    totals = {
        name: [sum(seconds[corpus][name][n] for corpus in CLAIMED) for n in range(options.rounds)] for name in ways
    }
    result = {
        **claimed_ratio(ratios(totals["ftfy"], totals["mtnlg_data"])),
        "ratios": {
            corpus: round(statistics.median(ratios(times["ftfy"], times["mtnlg_data"])), 2)
            for corpus, times in seconds.items()
        },
        "texts_equal_to_ftfy": equal,
        "texts": {name: len(texts) for name, texts in corpora.items()},
        "megabytes": {
            name: round(sum(len(text.encode()) for text in texts) / 1e6, 3) for name, texts in corpora.items()
        },
        "seconds_of_one_core": seconds,
        **about,
    }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
