"""News recombined from sentences of real articles, with texts of tasks, beside real pages in WARC."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from known_crawl import warc_record
from record import articles

SHARED = Path(__file__).parents[2] / "shared" / "data"
CHARACTERS = 4600
FEW = 60


def sentences() -> list[str]:
    """Return the sentences of a thousand real articles."""
    texts = articles(SHARED / "near_duplicates" / "articles_1000.train")
    return [sentence.strip() + "." for text in texts for sentence in text.split(". ")]


def write_corpus(folder: Path, documents: int, pool: list[str]) -> None:
    """Write documents of `CHARACTERS`, task texts and pages."""
    rng = random.Random(documents)
    folder.mkdir(parents=True)
    texts = []
    for _ in range(documents):
        parts: list[str] = []
        while sum(map(len, parts)) < CHARACTERS:
            parts.append(rng.choice(pool))
        texts.append({"text": " ".join(parts)})
    tasks = [
        {"task": "boolq", "id": str(number), "text": " ".join(rng.sample(pool, 2))}
        for number in range(min(documents, 2000))
    ]
    for name, rows in (("news", texts), ("texts", tasks)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pages = sorted((SHARED / "extraction" / "html").glob("*.html.gz"))
    with (folder / "pages.warc.gz").open("wb") as file:
        for number in range(max(2, documents // 40)):
            page = gzip.decompress(pages[number % len(pages)].read_bytes())
            file.write(warc_record(page, number, "text/html"))
