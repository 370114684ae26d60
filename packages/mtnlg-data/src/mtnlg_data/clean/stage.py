"""Clean: apply the rules of paper.md 4.4, which repair a document's text or drop the document for a reason.

``unicode``      repairs mojibake and normalises quotes, ligatures and control characters (ftfy)
``whitespace``   replaces two or more spaces, and line ends after a letter or digit, by one space
``blank_lines``  replaces several blank lines by one (Gutenberg)
``paragraphs``   puts a blank line between lines, as each is a paragraph (RealNews)
``detokenize``   removes the spaces before ' ! . ? and around - and @ (CC-Stories)
``language``     drops documents whose main language is not English: ``not_english``
``javascript``   drops documents under 256 characters that mention JavaScript, such as "please turn on JavaScript"
``short``        drops documents under 512 characters

They apply in this order. The recipe chooses the rules of each source: code, for one, depends on its whitespace.
``unicode`` also drops documents crafted to keep ftfy busy for hours (``mojibake.unbounded_cost_reason``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field

from mtnlg_data.document import ENGLISH, read_documents, shard_source, write_documents
from mtnlg_data.engine import StageFolder, Unit, checksum
from mtnlg_data.settings import Settings
from mtnlg_data.tally import Tally, stage_summary

from .mojibake import fix_text, unbounded_cost_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary

Rule = Literal["unicode", "whitespace", "blank_lines", "paragraphs", "detokenize", "language", "javascript", "short"]
#: Extra rules of three datasets of the paper's corpus; the paper's tool has a variant for each.
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
    """Thresholds of the rules, in characters."""

    shortest: int = Field(512, ge=0)  # ``short`` drops documents under this length
    javascript_under: int = Field(256, ge=0)  # ``javascript`` drops only documents under this length


def clean_documents(
    shards: Sequence[Path], out: Path, settings: CleanSettings, rules: Mapping[str, Sequence[Rule]], engine: Engine
) -> Summary:
    """Write ``out/<shard>`` for every shard, by the rules of its source; returns the stage's summary."""
    units = [
        Cleaning(shard, checksum(shard), settings, tuple(rules[shard_source(shard)]), out / shard.name)
        for shard in shards
    ]
    stage = StageFolder(out, "clean", engine)
    summaries = stage.run(clean_shard, units, "clean")
    stage.finish(unit.output for unit in units)
    return stage_summary("clean", summaries, list(rules))


@dataclass(frozen=True)
class Cleaning(Unit):
    """Unit: one shard → its clean documents."""

    shard: Path
    checksum: str
    settings: CleanSettings
    rules: tuple[Rule, ...]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("clean", self.shard.name, self.checksum, self.settings.model_dump(), sorted(self.rules))


def clean_shard(unit: Cleaning) -> Summary:
    """Clean one shard."""
    tally = Tally(shard_source(unit.shard))

    def clean_batches() -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            texts, rows = [], []
            columns = (batch.column(name).to_pylist() for name in ("id", "text", "language"))
            for row, (document_id, text, language) in enumerate(zip(*columns, strict=True)):
                cleaned, reason = clean_text(text, language, unit.rules, unit.settings)
                if reason is not None:
                    tally.drop(len(text), reason)
                    tally.show(reason, document_id, text)
                    continue
                tally.keep(len(text), len(cleaned))
                texts.append(cleaned)
                rows.append(row)
            kept = batch.take(pa.array(rows, pa.int64()))
            yield kept.set_column(2, batch.schema.field("text"), pa.array(texts, pa.large_string()))

    write_documents(unit.output, clean_batches())
    return tally.summary()


def clean_text(
    text: str, language: str | None, rules: Sequence[Rule], settings: CleanSettings
) -> tuple[str, str | None]:
    """Apply the rules to a text; returns the cleaned text, and the reason to drop the document or None."""
    if "unicode" in rules:
        if reason := unbounded_cost_reason(text):
            return text, reason
        text = fix_text(text)
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
