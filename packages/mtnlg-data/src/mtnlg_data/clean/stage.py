"""The rules of paper.md 4.4 on the text of a document: what they change, and the reason for which they drop it.

``unicode``      repairs text that was decoded wrongly and makes quotes, ligatures and control characters plain (ftfy)
``whitespace``   two or more spaces, and line ends behind a letter or digit, become one space
``blank_lines``  several blank lines become one (Gutenberg)
``paragraphs``   every line is a paragraph: a blank line goes between them (RealNews)
``detokenize``   the spaces before ' ! . ? and around - and @ go (CC-Stories)
``language``     drops documents whose first language is not English: ``not_english``
``javascript``   drops documents under 256 characters that mention JavaScript: "please turn it on" and the like
``short``        drops documents under 512 characters

They apply in this order. Which of them a source gets is its recipe's choice: code, say, lives by its white space. Under
``unicode`` a document also goes that was made to keep ftfy busy for hours (``fixing.trap``), for that reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field

from mtnlg_data.document import read_documents, source_of, write_documents
from mtnlg_data.engine import checksum, key_of, run_units
from mtnlg_data.extract.text import ENGLISH
from mtnlg_data.settings import Settings
from mtnlg_data.tally import Tally, stage

from .mojibake import repaired, trap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary

Rule = Literal["unicode", "whitespace", "blank_lines", "paragraphs", "detokenize", "language", "javascript", "short"]
#: What three of the corpus's datasets had done to them beside the usual; the paper's tool has a variant for each.
VARIANTS: dict[str, tuple[Rule, ...]] = {
    "Gutenberg": ("blank_lines",),
    "RealNews": ("paragraphs",),
    "CC-Stories": ("detokenize",),
}
BROKEN_SPACE = re.compile(r"  +|\b\n+ ?")
BLANK_LINES = re.compile(r"\n\n+")
TOKENIZED = re.compile(r" (?=['!.?])| ([-@]) ")
JAVASCRIPT = re.compile("javascript", re.IGNORECASE)


class CleanSettings(Settings):
    """Where the rules draw their lines."""

    shortest: int = Field(512, ge=0)  # characters of the shortest document that ``short`` keeps
    javascript_under: int = Field(256, ge=0)  # characters under which ``javascript`` drops a document


def clean_documents(
    shards: Sequence[Path], out: Path, settings: CleanSettings, rules: Mapping[str, Sequence[Rule]], engine: Engine
) -> Summary:
    """Write ``out/<shard>`` for every shard, by the rules of its source; returns the stage's account."""
    how = {source: tuple(of) for source, of in rules.items()}
    units = [Cleaning(shard, checksum(shard), settings, how[source_of(shard)], out / shard.name) for shard in shards]
    return stage("clean", run_units(engine, clean_shard, units, "clean"), list(rules))


@dataclass(frozen=True)
class Cleaning:
    """Unit: one shard → its clean documents."""

    shard: Path
    checksum: str
    settings: CleanSettings
    rules: tuple[Rule, ...]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("clean", self.shard.name, self.checksum, self.settings.model_dump(), sorted(self.rules))


def clean_shard(unit: Cleaning) -> Summary:
    """Run one unit."""
    tally = Tally(source_of(unit.shard))

    def kept() -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            texts, rows = [], []
            columns = (batch.column(name).to_pylist() for name in ("id", "text", "language"))
            for row, (name, text, language) in enumerate(zip(*columns, strict=True)):
                cleaned, reason = clean_text(text, language, unit.rules, unit.settings)
                if reason is not None:
                    tally.drop(len(text), reason)
                    tally.show(reason, name, text)
                    continue
                tally.keep(len(text), len(cleaned))
                texts.append(cleaned)
                rows.append(row)
            chosen = batch.take(pa.array(rows, pa.int64()))
            yield chosen.set_column(2, batch.schema.field("text"), pa.array(texts, pa.large_string()))

    write_documents(unit.output, kept())
    return tally.summary()


def clean_text(
    text: str, language: str | None, rules: Sequence[Rule], settings: CleanSettings
) -> tuple[str, str | None]:
    """The text as the rules leave it, and the reason to drop it, if there is one."""
    if "unicode" in rules:
        if reason := trap(text):
            return text, reason
        text = repaired(text)
    if "whitespace" in rules:
        text = BROKEN_SPACE.sub(" ", text)
    if "blank_lines" in rules:
        text = BLANK_LINES.sub("\n\n", text)
    if "paragraphs" in rules:
        text = text.replace("\n", "\n\n")
    if "detokenize" in rules:
        text = TOKENIZED.sub(r"\1", text)
    if "language" in rules and language != ENGLISH:
        return text, "not_english"
    if "javascript" in rules and len(text) < settings.javascript_under and JAVASCRIPT.search(text):
        return text, "javascript"
    if "short" in rules and len(text) < settings.shortest:
        return text, "short"
    return text, None
