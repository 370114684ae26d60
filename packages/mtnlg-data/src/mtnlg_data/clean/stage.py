"""Clean: apply the rules of paper.md 4.4, which repair a document's text or drop the document for a reason.

``unicode``      repairs mojibake and normalises quotes, ligatures and control characters (ftfy)
``whitespace``   replaces two or more spaces, and line ends after a letter or digit, by one space
``blank_lines``  replaces several blank lines by one (Gutenberg)
``paragraphs``   puts a blank line between lines, as each is a paragraph (RealNews)
``detokenize``   removes the spaces before ' ! . ? and around - and @ (CC-Stories)
``language``     drops documents in other languages than the wanted ones, by default English: ``other_language``; and
                 where their language is less sure than ``min_language_score``: ``language_score``
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

from mtnlg_data.document import read_documents, replace_columns, shard_source, write_documents
from mtnlg_data.engine import StageFolder, Unit, checksum
from mtnlg_data.extract.language import Language, LanguageSettings, open_identifier
from mtnlg_data.settings import setting
from mtnlg_data.tally import recorded_tallies, stage_summary

from .mojibake import fix_text, unbounded_cost_reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.tally import Tally

Rule = Literal["unicode", "whitespace", "blank_lines", "paragraphs", "detokenize", "language", "javascript", "short"]
#: Extra rules of three datasets of the paper's corpus; the paper's tool has a variant for each.
VARIANTS: dict[str, tuple[Rule, ...]] = {
    "Gutenberg": ("blank_lines",),
    "RealNews": ("paragraphs",),
    "CC-Stories": ("detokenize",),
}
RECORDED = ("language", "language_score")
BY_LENGTH = ("javascript", "short")  # reasons of which the record has the length
BROKEN_SPACE = re.compile(r"  +|\n(?<=\w\n)\n* ?")  # is "  +|\b\n+ ?", but begins with letters: thrice as fast
BLANK_LINES = re.compile(r"\n\n+")
TOKENIZED = re.compile(r" (?=['!.?])| ([-@]) ")
JAVASCRIPT = re.compile("javascript", re.IGNORECASE)


class CleanSettings(LanguageSettings):
    """Thresholds of the rules, in characters, and of the alarm; what the rule ``language`` wants."""

    shortest: int = setting(512, "Rule short drops documents under this.", unit="characters", paper="512", ge=0)
    javascript_under: int = setting(
        256, "Rule javascript drops only documents under this.", unit="characters", paper="256", ge=0
    )
    alarm_share: float = setting(0.5, "Warn of a source that loses more.", unit="share", ge=0, le=1)


def clean_documents(
    shards: Sequence[Path], out: Path, settings: CleanSettings, rules: Mapping[str, Sequence[Rule]], engine: Engine
) -> Summary:
    """Write ``out/<shard>`` for every shard, by the rules of its source; returns the stage's summary."""
    settings.check_model()
    units = [
        Cleaning(shard, checksum(shard), settings, tuple(rules[shard_source(shard)]), out / shard.name)
        for shard in shards
    ]
    stage = StageFolder(out, "clean", engine)
    summaries = stage.run(clean_shard, units, "clean")
    stage.finish(unit.output for unit in units)
    return stage_summary("clean", summaries, list(rules), settings.alarm_share)


@dataclass(frozen=True)
class Cleaning(Unit):
    """Unit: one shard → its clean documents."""

    shard: Path
    checksum: str
    settings: CleanSettings
    rules: tuple[Rule, ...]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        settings = self.settings.model_dump(exclude={"alarm_share", *LanguageSettings.model_fields})
        languages = self.settings.key() if "language" in self.rules else None
        return ("clean", self.shard.name, self.checksum, settings, languages, sorted(self.rules))


def clean_shard(unit: Cleaning) -> Summary:
    """Clean one shard."""
    source = shard_source(unit.shard)

    def clean_batches(tally: Tally) -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            texts, languages, rows = [], [], []
            columns = (batch.column(name).to_pylist() for name in ("id", "key", "text"))
            for row, (document_id, key, text, language) in enumerate(
                zip(*columns, _languages(batch, unit), strict=True)
            ):
                cleaned, reason = clean_text(text, language, unit.rules, unit.settings)
                if reason is not None:
                    by_score = language.score if language and reason == "language_score" else None
                    score = len(cleaned) if reason in BY_LENGTH else by_score
                    tally.drop(len(text), reason, document_id, score, key)
                    tally.show(reason, document_id, text, key=key)
                    continue
                tally.keep(len(text), len(cleaned))
                texts.append(cleaned)
                languages.append(language or (None, None))
                rows.append(row)
            kept = batch.take(pa.array(rows, pa.int64()))
            codes, scores = zip(*languages, strict=True) if languages else ((), ())
            yield replace_columns(kept, {"text": texts, "language": codes, "language_score": scores})

    with recorded_tallies(unit.output) as tallies:
        write_documents(unit.output, clean_batches(tallies[source]))
    return tallies.summary()


def _languages(batch: pa.RecordBatch, unit: Cleaning) -> Iterator[Language | None]:
    """The language of each document: as recorded, or found here where the rule ``language`` needs it."""
    identify = open_identifier(unit.settings.language_model) if "language" in unit.rules else None
    for text, code, score in zip(*(batch[name].to_pylist() for name in ("text", *RECORDED)), strict=True):
        unsure = code is None or (score is None and unit.settings.min_language_score > 0)
        recorded = None if code is None else Language(code, score)
        yield identify(text) if unsure and identify is not None else recorded


def clean_text(
    text: str, language: Language | None, rules: Sequence[Rule], settings: CleanSettings
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
    if "language" in rules and (reason := settings.refuse(language)):
        return text, reason
    if "javascript" in rules and len(text) < settings.javascript_under and JAVASCRIPT.search(text):
        return text, "javascript"
    if "short" in rules and len(text) < settings.shortest:
        return text, "short"
    return text, None
