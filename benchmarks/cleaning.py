# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "ftfy==6.3.1"]
# ///
"""Repairing Unicode: mtnlg_data's ``repaired`` against ``ftfy.fix_text``, one core, with the same text.

    python benchmarks/cleaning.py DATA [--rounds 7] [--out FILE]

DATA holds web/cc_en_head-0091.jsonl.gz, extraction/html/*.html.gz and near_duplicates/*.train. Four corpora: texts of
an English crawl; what we extract of article pages; news articles; and the first of these broken on purpose, UTF-8 read
as Windows-1252, where every line needs ftfy's work. The ratio that we claim is that of the first two together.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path

import ftfy

from mtnlg_data.clean.mojibake import repaired
from mtnlg_data.extract.boilerplate import BoilerplateSettings, main_text
from mtnlg_data.extract.paragraphs import read_page
from record import conditions, keep

CLAIMED = ("crawl", "extracted")


def corpora_of(data: Path) -> dict[str, list[str]]:
    """The texts of every corpus."""
    lines = gzip.decompress((data / "web" / "cc_en_head-0091.jsonl.gz").read_bytes()).splitlines()
    crawl = [json.loads(line)["text"] for line in lines]
    pages = (gzip.decompress(path.read_bytes()).decode() for path in sorted(data.glob("extraction/html/*.html.gz")))
    extracted = [main_text(read_page(page).paragraphs, BoilerplateSettings()) for page in pages]
    articles = next(iter(data.glob("near_duplicates/*.train"))).read_text(encoding="utf-8").splitlines()
    return {
        "crawl": crawl,
        "extracted": extracted,
        "articles": [line.partition(" ")[2] for line in articles],
        "broken": [text.encode().decode("cp1252", "ignore") for text in crawl],
    }


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    corpora = corpora_of(options.data)
    about = conditions("mtnlg-data", "ftfy")
    equal = {name: sum(repaired(text) == ftfy.fix_text(text) for text in texts) for name, texts in corpora.items()}
    ways = {"mtnlg_data": repaired, "ftfy": ftfy.fix_text}
    seconds: dict[str, dict[str, list[float]]] = {corpus: {name: [] for name in ways} for corpus in corpora}
    for number in range(options.rounds):
        for corpus, texts in corpora.items():
            for name in sorted(ways, reverse=bool(number % 2)):
                repeats = 20 if name == "mtnlg_data" and corpus != "broken" else 1  # a round of ours is too short
                started = time.process_time()
                for _ in range(repeats):
                    for text in texts:
                        ways[name](text)
                seconds[corpus][name].append((time.process_time() - started) / repeats)
    rounds = range(options.rounds)
    claimed = [
        sum(seconds[corpus]["ftfy"][n] for corpus in CLAIMED)
        / sum(seconds[corpus]["mtnlg_data"][n] for corpus in CLAIMED)
        for n in rounds
    ]
    result = {
        "ratio": round(statistics.median(claimed), 1),
        "ratio_spread": [round(min(claimed), 1), round(max(claimed), 1)],
        "ratios": {
            corpus: round(statistics.median(of["ftfy"][n] / of["mtnlg_data"][n] for n in rounds), 2)
            for corpus, of in seconds.items()
        },
        "texts_equal_to_ftfy": equal,
        "texts": {name: len(texts) for name, texts in corpora.items()},
        "megabytes": {
            name: round(sum(len(text.encode()) for text in texts) / 1e6, 3) for name, texts in corpora.items()
        },
        "seconds_of_one_core": seconds,
        **about,
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
