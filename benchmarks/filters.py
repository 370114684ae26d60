# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[trafilatura]", "datatrove==0.10.1", "spacy", "xxhash<4"]
# ///
"""Filters of Gopher, C4 and FineWeb, and e-mail and IP addresses replaced: mtnlg_data against datatrove, one core.

    python benchmarks/filters.py DATA [--rounds 5] [--copies 3] [--out FILE]

DATA holds real texts: near_duplicates/articles_1000.train (news, one a line after its id; here three sentences a line)
and pages, web/*.warc.gz and extraction/html/*.html.gz (by trafilatura). Rules and thresholds are those of
recipes/fineweb without URL lists, from one Parquet file to another, where mtnlg_data also counts, keeps samples,
records what it drops, and syncs and checksums its files. Ratios are of CPU time. datatrove runs

    spacy  as it comes: spaCy's words and sentences
    plain  with words by ``str.split`` and sentences by one regular expression, its best setting

Decisions are compared document by document, on the same words (white space; sentences as mtnlg_data counts them).
"""

from __future__ import annotations

import gzip
import re
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import trafilatura
from datatrove.data import Document as TheirDocument
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils import word_tokenizers
from datatrove.utils.typeshelper import Languages
from fastwarc.warc import ArchiveIterator, WarcRecordType

from mtnlg_data.engine import Local
from mtnlg_data.filters import c4
from mtnlg_data.filters.decisions import KEPT, DocumentFilter
from mtnlg_data.filters.rules import own_families
from mtnlg_data.filters.settings import FilterSettings
from mtnlg_data.job import run_step
from mtnlg_data.schema import Document
from mtnlg_data.steps.filter import Filter
from mtnlg_data.text.characters import character_table
from record import articles, megabytes_of, rates, ratios, run, spread, time_on_shard

SETTINGS = FilterSettings.model_validate(
    {"c4_fewest_words": 3, "c4_fewest_sentences": 5, "fineweb_duplicate_line_characters": 0.01}
)
EXCEPT = {"c4_bad_words", "c4_terminal_punctuation", "pii_phone"}
RULES_ON = tuple(
    rule.name for family in own_families() if family.name != "url" for rule in family.rules if rule.name not in EXCEPT
)
SENTENCES_A_LINE = 3
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def real_texts(data: Path) -> list[str]:
    """Return news and pages with more than white space."""
    texts = [_in_lines(text) for text in articles(data / "near_duplicates" / "articles_1000.train")]
    html = sorted((data / "extraction" / "html").glob("*.html.gz"))
    pages = [gzip.decompress(path.read_bytes()) for path in html]
    for path in sorted((data / "web").glob("*.warc.gz")):
        with path.open("rb") as file:
            pages += [record.reader.read() for record in ArchiveIterator(file, record_types=WarcRecordType.response)]
    texts += [trafilatura.extract(page, fast=True) or "" for page in pages]
    return [text for text in texts if text.split()]


def _in_lines(article: str) -> str:
    sentences = SENTENCE.split(article)
    return "\n".join(" ".join(sentences[n : n + SENTENCES_A_LINE]) for n in range(0, len(sentences), SENTENCES_A_LINE))


class Plain(word_tokenizers.WordTokenizer):  # type: ignore[misc]  # datatrove has no annotations
    """Words between white space; sentences after full stops, question and exclamation marks."""

    def word_tokenize(self, text: str) -> list[str]:
        """Return the words."""
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        """Return the sentences."""
        return SENTENCE.split(text)

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return the bounds of the sentences."""
        bounds = [0, *(match.end() for match in SENTENCE.finditer(text)), len(text)]
        return list(pairwise(bounds))


SIDES: dict[str, Any] = {"mtnlg_data": None, "datatrove_plain": Plain(), "datatrove_spacy": Languages.english}


class OurSentences(Plain):
    """Words between white space; as many sentences as mtnlg_data counts."""

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Return so many bounds; only their number counts."""
        return [(0, 0)] * c4.count_sentences(np.frombuffer(text.encode(), np.uint8), character_table())


def their_steps(words: word_tokenizers.WordTokenizer | str) -> list[Any]:
    """Return datatrove's filters, in the order of FineWeb, with these words and sentences."""
    return [
        GopherRepetitionFilter(language=words),
        GopherQualityFilter(language=words),
        C4QualityFilter(filter_no_terminal_punct=False, language=words),
        FineWebQualityFilter(language=words),
    ]


def compare(texts: list[str]) -> dict[str, int]:
    """Count documents that one side keeps and the other drops, and those of which they keep other texts.

    On the same words and sentences, those between white space and those that mtnlg_data counts.
    """
    steps, theirs = their_steps(OurSentences()), []
    for text in texts:
        document = TheirDocument(text=text, id="")
        theirs.append(document.text if not any(isinstance(step.filter(document), tuple) for step in steps) else None)
    rules = [name for name in RULES_ON if not name.startswith("pii")]
    chosen = DocumentFilter(rules, SETTINGS.model_copy(update={"words": "whitespace"}))
    decided = chosen.decide(pa.array(texts, pa.large_string()), [None] * len(texts))
    kept = iter(decided.texts.to_pylist())
    ours = [next(kept) if number == KEPT else None for number in decided.reasons.tolist()]
    pairs = [*zip(theirs, ours, strict=True)]
    return {
        "documents": len(texts),
        "kept_by_datatrove": len(texts) - theirs.count(None),
        "kept_or_dropped_differently": sum((their is None) != (our is None) for their, our in pairs),
        "other_texts": sum(None not in pair and pair[0] != pair[1] for pair in pairs),
    }


def run_filters(name: str, shard: Path, out: Path) -> None:
    """Run all filters of a side from Parquet to Parquet."""
    if SIDES[name] is None:
        run_step(Filter(SETTINGS, {"web": {"filters": list(RULES_ON)}}), [shard], out, Local(1))
        return
    writer = ParquetWriter(str(out / "kept"), compression="zstd")
    reader = ParquetReader(str(shard.parent), glob_pattern=shard.name)
    pipeline = [reader, *their_steps(SIDES[name]), PIIFormatter(), writer]
    LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=str(out / "log")).run()


def measure(data: Path, copies: int = 3, rounds: int = 5) -> dict[str, Any]:
    """Compare seconds on ``copies`` of the texts, and decisions."""
    texts = real_texts(data)
    megabytes = copies * megabytes_of(texts)
    documents = [Document(f"{n}", "web", text) for n, text in enumerate(texts * copies)]
    sides = {name: partial(run_filters, name) for name in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        seconds, _ = time_on_shard(sides, documents, rounds, Path(scratch))
    return {
        "against_plain": spread(ratios(seconds["datatrove_plain"], seconds["mtnlg_data"])),
        "against_spacy": spread(ratios(seconds["datatrove_spacy"], seconds["mtnlg_data"])),
        "megabytes_per_second": rates(megabytes, seconds),
        "decisions": compare(texts),
        "settings": "recipes/fineweb without URL lists; datatrove: the filters' defaults, "
        "C4QualityFilter(filter_no_terminal_punct=False), PIIFormatter()",
        "documents": len(texts),
        "megabytes": round(megabytes / copies, 3),
        "copies": copies,
    }


if __name__ == "__main__":
    run(measure, __doc__)
