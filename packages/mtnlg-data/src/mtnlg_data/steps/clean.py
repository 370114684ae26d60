"""Repair Unicode and white space; drop other languages, JavaScript stubs and short documents.

The rules are those of paper.md 4.4:

``unicode``      repairs mojibake and normalises quotes, ligatures and control characters (ftfy)
``whitespace``   replaces two or more spaces, and line ends after a letter or digit, by one space
``blank_lines``  replaces several blank lines by one (Gutenberg)
``paragraphs``   puts a blank line between lines, as each is a paragraph (RealNews)
``detokenize``   removes the spaces before ' ! . ? and around - and @ (CC-Stories)
``language``     drops documents in other languages than the wanted ones, by default English: ``other_language``; and
                 where their language is less sure than ``min_language_score``: ``language_score``
``javascript``   drops documents under 256 characters that mention JavaScript, such as "please turn on JavaScript"
``short``        drops documents under 512 characters, or as many as say as much in their language

They apply in this order. The recipe chooses the rules of each source: code, for one, depends on its whitespace.
``unicode`` also drops documents crafted to keep ftfy busy for hours (``mojibake.unbounded_cost_reason``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from mtnlg_data.document import replace_columns, shard_source
from mtnlg_data.extract.language import Language, LanguageSettings, open_identifier, text_length
from mtnlg_data.quantities import alarm_share, characters
from mtnlg_data.settings import Settings, setting
from mtnlg_data.sources.corpus import DATASETS
from mtnlg_data.sources.reader import reader_in_recipe
from mtnlg_data.step import KEPT, Cost, Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mtnlg_data.document import Shard
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide

Rule = Literal["unicode", "whitespace", "blank_lines", "paragraphs", "detokenize", "language", "javascript", "short"]
TEXT_RULES: tuple[Rule, ...] = ("unicode", "language", "javascript", "short")
PAGE_RULES: tuple[Rule, ...] = ("unicode", "whitespace", "language", "javascript", "short")
#: Extra rules of three datasets of the paper's corpus; the paper's tool has a variant for each.
VARIANTS: dict[str, tuple[Rule, ...]] = {
    "Gutenberg": ("blank_lines",),
    "RealNews": ("paragraphs",),
    "CC-Stories": ("detokenize",),
}
RECORDED = ("language", "language_score")
SHORTEST = 512  # characters of English
BY_LENGTH = ("javascript", "short")  # reasons for which the record's score is the length
BROKEN_SPACE = re.compile(r"  +|\n(?<=\w\n)\n* ?")  # same as "  +|\b\n+ ?", but starts with literals: 3x as fast
BLANK_LINES = re.compile(r"\n\n+")
TOKENIZED = re.compile(r" (?=['!.?])| ([-@]) ")
JAVASCRIPT = re.compile("javascript", re.IGNORECASE)


class CleanSettings(LanguageSettings):
    """Thresholds of the rules, in characters, and of the alarm; what the rule ``language`` wants."""

    shortest: int | None = characters(
        None,
        "Rule short drops shorter documents; default 512, less in languages of short texts.",
        paper="512",
    )
    javascript_under: int = characters(256, "Rule javascript drops only shorter documents.", paper="256")
    alarm_share: float = alarm_share(0.5)


class CleanKeys(Settings):
    """What clean reads of a source."""

    rules: list[Rule] = setting(list(TEXT_RULES), "Rules of clean; default the paper's for the source's kind and name.")


class Clean(Step[CleanSettings, CleanKeys]):
    """The rules of each source, applied in their order."""

    number, version = 3, 2
    kept = ("ftfy", "pycld2", "fasttext-predict")
    follows: ClassVar[Mapping[str, tuple[str, ...]]] = {"extract": tuple(LanguageSettings.model_fields)}

    @classmethod
    def source_defaults(cls, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """The paper's rules for a source of this name and kind."""
        dataset = DATASETS.get(name)
        pages = reader_in_recipe(table.get("kind")).pages or (dataset and dataset.whitespace)
        rules = PAGE_RULES if pages else TEXT_RULES
        return {"rules": [*rules, *VARIANTS.get(name, ())]}

    def check(self) -> None:
        """Open the language model."""
        self.settings.check_model()

    def cost(self, corpus: CorpusSize) -> Cost:
        """The cost as measured with all rules."""
        model = self.settings.language_model.stat().st_size if self.settings.language_model else 0
        return Cost(0.0191 * corpus.text / 1e6, 325_000_000 + corpus.group + model, corpus.disk)

    def fingerprint(self, source: str) -> object:
        """The settings of languages do not count for a source without the rule ``language``."""
        rules, settings = self.sources[source].rules, self.settings_for(source).model_dump()
        ignored = () if "language" in rules else LanguageSettings.model_fields
        return [sorted(rules), self.Settings(**{k: v for k, v in settings.items() if k not in ignored})]

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Clean text by text."""
        del item, shared
        rules, settings = self.sources[shard_source(shard.path)].rules, self.settings

        def decide(batch: pa.RecordBatch) -> Outcome:
            texts, languages = [], []
            reasons: dict[str, int] = {}
            decisions, scores = np.full(batch.num_rows, KEPT), np.full(batch.num_rows, np.nan)
            recorded = _languages(batch, rules, settings)
            for row, (text, language) in enumerate(zip(batch["text"].to_pylist(), recorded, strict=True)):
                cleaned, reason = clean_text(text, language, rules, settings)
                if reason is None:
                    texts.append(cleaned)
                    languages.append(language or (None, None))
                    continue
                decisions[row] = reasons.setdefault(reason, len(reasons))
                if reason in BY_LENGTH:
                    scores[row] = len(cleaned)
                elif reason == "language_score" and language and language.score is not None:
                    scores[row] = language.score
            codes, shares = zip(*languages, strict=True) if languages else ((), ())
            columns = {"text": texts, "language": codes, "language_score": shares}
            kept = replace_columns(batch.filter(pa.array(decisions == KEPT)), columns)
            return Outcome(kept, decisions, list(reasons), scores)

        return decide


def _languages(batch: pa.RecordBatch, rules: Sequence[Rule], settings: CleanSettings) -> Iterator[Language | None]:
    """The language of each document: as recorded, or found here where the rule ``language`` needs it."""
    identify = open_identifier(settings.language_model) if "language" in rules else None
    for text, code, score in zip(*(batch[name].to_pylist() for name in ("text", *RECORDED)), strict=True):
        unsure = code is None or (score is None and settings.min_language_score > 0)
        recorded = None if code is None else Language(code, score)
        yield identify(text) if unsure and identify is not None else recorded


def clean_text(
    text: str, language: Language | None, rules: Sequence[Rule], settings: CleanSettings
) -> tuple[str, str | None]:
    """Apply the rules to a text; returns the cleaned text, and the reason to drop the document or None."""
    if "unicode" in rules:
        from mtnlg_data.mojibake import fix_text, unbounded_cost_reason  # noqa: PLC0415  (ftfy: 30 ms of every command)

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
    if "short" in rules and len(text) < text_length(settings.shortest, SHORTEST, language.code if language else ""):
        return text, "short"
    return text, None
