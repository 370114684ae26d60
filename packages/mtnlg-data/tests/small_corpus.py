"""A small corpus of English sentences in every format, for the tests of the pipeline."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUBJECTS = ["the old harbour", "a patient teacher", "our northern railway", "the small committee", "this careful study"]
VERBS = ["was built for", "had always been near", "would not have known", "is still part of", "came to be seen as"]
OBJECTS = ["the people of the town", "what it had become", "a long and quiet winter", "one of its kind", "all of us"]
ENDINGS = ["as they had been told", "and that was enough", "before the war was over", "which is why", "so it is"]
SLANG = ["buy now", "click here", "best price", "free offer", "visit our shop", "order today"]

RECIPE = """
texts = "texts.jsonl"

[sources.books]
kind = "jsonl"
paths = ["raw/books/*.jsonl.zst"]
weight = 0.4
curated = true

[sources.crawl]
kind = "warc"
paths = ["raw/crawl/*.warc.gz"]
weight = 0.6
filtered = true

[quality]
alpha = 1.0

[clean]
shortest = 200

[tokenize]
vocabulary = 400
"""


def sentence(rng: random.Random, *, good: bool = True) -> str:
    """A sentence; a bad one is half advertisement."""
    words = [rng.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, ENDINGS)]
    if not good:
        words += rng.sample(SLANG, 4)
    return f"{' '.join(words).capitalize()}, {rng.randrange(10_000)}."


def paragraph(rng: random.Random, *, good: bool = True) -> str:
    return " ".join(sentence(rng, good=good) for _ in range(5))


def text(number: int, *, good: bool = True) -> str:
    rng = random.Random(f"{number} {good}")
    return "\n\n".join(paragraph(rng, good=good) for _ in range(3))


def page(content: str, title: str = "A page") -> str:
    paragraphs = "".join(f"<p>{part}</p>" for part in content.split("\n\n"))
    menu = "".join(f'<li><a href="/{word}">{word}</a></li>' for word in ("home", "about", "contact"))
    return f"<html><head><title>{title}</title></head><body><ul>{menu}</ul>{paragraphs}</body></html>"


def record(
    body: bytes,
    uri: str = "http://example.org/",
    *,
    length: int | None = None,
    http: str = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8",
    kind: str = "response",
) -> bytes:
    """One WARC record, uncompressed; ``length`` overrides its true Content-Length."""
    block = f"{http}\r\n\r\n".encode() + body
    header = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000000>\r\n"
        f"WARC-Date: 2021-01-01T00:00:00Z\r\nWARC-Target-URI: {uri}\r\n"
        f"Content-Type: application/http; msgtype={kind}\r\nContent-Length: {len(block) if length is None else length}"
    )
    return f"{header}\r\n\r\n".encode() + block + b"\r\n\r\n"


def member(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(lines) if path.suffix == ".zst" else lines)
    return path


def write_texts(path: Path, texts: list[str]) -> None:
    """Write these texts in the format of the suffix; .zst gives the Pile's format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"text": text, "meta": {"pile_set_name": "Own"}} for text in texts]
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.table({"text": texts}), path)
        case ".gz":
            path.write_bytes(member(b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
        case _:
            write_jsonl(path, rows)


def write_run(folder: Path, pages: int = 120) -> Path:
    """Write raw files, task texts and a recipe; returns the recipe. Half the pages are adverts, some duplicates."""
    for part in range(2):
        numbers = range(part * 40, part * 40 + 40)
        write_jsonl(folder / "raw" / "books" / f"{part}.jsonl.zst", [{"text": text(n)} for n in numbers])
        crawl = folder / "raw" / "crawl" / f"{part}.warc.gz"
        crawl.parent.mkdir(parents=True, exist_ok=True)
        numbers = range(1000 + part * pages // 2, 1000 + (part + 1) * pages // 2)
        contents = [text(n if n % 10 else 1000, good=n % 2 == 0) for n in numbers]
        pages_of = [record(page(content).encode(), f"http://example.org/{n}") for n, content in enumerate(contents)]
        crawl.write_bytes(b"".join(map(member, pages_of)))
    write_jsonl(folder / "texts.jsonl", [{"task": "boolq", "id": "0", "text": paragraph(random.Random("1 True"))}])
    recipe = folder / "data.toml"
    recipe.write_text(RECIPE)
    return recipe
