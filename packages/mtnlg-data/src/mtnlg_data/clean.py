"""The rules of paper.md 4.4 on the text of a document: what they change, and the reason for which they drop it.

``unicode``     repairs text that was decoded wrongly and makes quotes, ligatures and control characters plain (ftfy)
``whitespace``  two or more spaces, and line ends inside a sentence, become one space
``language``    drops documents whose first language is not English
``javascript``  drops documents under 256 characters that mention JavaScript: "please turn it on" and the like
``short``       drops documents under 512 characters

They apply in this order. Which of them a source gets is its recipe's choice: code, say, lives by its white space.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import ftfy
import pyarrow as pa
from pydantic import Field

from .document import read_documents, source_of, write_documents
from .engine import checksum, key_of, run_units
from .extract import ENGLISH
from .funnel import Tally, stage
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .engine import Engine, Summary

Rule = Literal["unicode", "whitespace", "language", "javascript", "short"]
#: Lines that ftfy leaves as they are: printable ASCII without what could be an HTML entity.
PLAIN = re.compile(r"[\t\n -%'-~]*")
BROKEN_SPACE = re.compile(r"  +|\b\n+ ?\b")
JAVASCRIPT = re.compile("javascript", re.IGNORECASE)


class CleanSettings(Settings):
    """Where the rules draw their lines."""

    shortest: int = Field(512, ge=0)  # characters of the shortest document that ``short`` keeps
    javascript_under: int = Field(256, ge=0)  # characters under which ``javascript`` drops a document


def clean(
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
        text = repaired(text)
    if "whitespace" in rules:
        text = BROKEN_SPACE.sub(" ", text)
    if "language" in rules and language != ENGLISH:
        return text, "not_english"
    if "javascript" in rules and len(text) < settings.javascript_under and JAVASCRIPT.search(text):
        return text, "javascript"
    if "short" in rules and len(text) < settings.shortest:
        return text, "short"
    return text, None


def repaired(text: str) -> str:
    """``ftfy.fix_text(text)``, to the character, without the cost of it where a line is plain.

    ftfy works line by line (in pieces of a million characters), and from the first piece that holds a "<" on it leaves
    HTML entities alone; that is all a piece learns from those before it.
    """
    config = ftfy.TextFixerConfig(explain=False)
    pieces: list[str] = []
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin) + 1 or len(text)
        end = min(end, begin + config.max_decode_length)
        piece = text[begin:end]
        begin = end
        if config.unescape_html == "auto" and "<" in piece:
            config = config._replace(unescape_html=False)
        pieces.append(piece if PLAIN.fullmatch(piece) else ftfy.fix_and_explain(piece, config).text)
    return "".join(pieces)
