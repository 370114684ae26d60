# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[trafilatura]", "datatrove==0.10.1", "spacy", "xxhash<4"]
# ///
"""Filters of Gopher, C4 and FineWeb, and e-mail and IP addresses replaced: mtnlg_data against datatrove, one core.

    python benchmarks/filters.py DATA [--rounds 5] [--copies 3] [--plain] [--out FILE]

DATA holds real texts: near_duplicates/articles_1000.train (news, one a line after its id; here three sentences a line)
and pages, web/*.warc.gz and extraction/html/*.html.gz (by trafilatura). Rules and thresholds are those of
recipes/fineweb without URL lists. Each family of rules is timed from texts in memory to decisions, all together from
one Parquet file to another, where mtnlg_data also counts, keeps samples, records what it drops, and syncs and checksums
its files. Ratios are of CPU time. datatrove runs

    spacy  as it comes: spaCy's words and sentences
    plain  with words by ``str.split`` and sentences by one regular expression, its best setting

``--plain`` measures each family against that setting alone, and nothing else: a minute instead of many.

Decisions are compared on the same words (white space; sentences as mtnlg_data counts them) and on spaCy's, document by
document with their reasons, and then each side's defaults against the other's.
"""

from __future__ import annotations

import gzip
import re
import resource
import tempfile
import time
from collections import Counter, deque
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.filters import c4
from mtnlg_data.filters.decisions import KEPT, DocumentFilter
from mtnlg_data.filters.rules import own_families
from mtnlg_data.filters.settings import FilterSettings
from mtnlg_data.job import run_step
from mtnlg_data.schema import Document
from mtnlg_data.steps.filter import Filter
from mtnlg_data.text.arrays import Texts, small_batches
from mtnlg_data.text.batch import TextBatch
from mtnlg_data.text.characters import character_table
from mtnlg_data.text.words import Words, sum_words
from record import claimed_ratio, conditions, option_parser, rates, ratios, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SETTINGS = FilterSettings.model_validate(
    {"c4_fewest_words": 3, "c4_fewest_sentences": 5, "fineweb_duplicate_line_characters": 0.01}
)
EXCEPT = {"c4_bad_words", "c4_terminal_punctuation", "pii_phone"}
RULES_OF = {
    family.name: [rule.name for rule in family.rules if rule.name not in EXCEPT]
    for family in own_families()
    if family.name != "url"
}
RULES_ON = tuple(rule for rules in RULES_OF.values() for rule in rules)
SENTENCES_A_LINE = 3
SENTENCE = re.compile(r"(?<=[.!?])\s+")
#: Our names of datatrove's reasons, where they do not follow from the name of a rule in order.
GOPHER = [rule for rule in RULES_ON if rule.startswith("gopher")]
THEIR_GOPHER = [
    *("dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac"),
    *(f"top_{n}_gram" for n in (2, 3, 4)),
    *(f"duplicated_{n}_n_grams" for n in range(5, 11)),
    *("gopher_short_doc", "gopher_long_doc", "gopher_below_avg_threshold", "gopher_above_avg_threshold"),
    *("gopher_too_many_hashes", "gopher_too_many_ellipsis", "gopher_too_many_bullets", "gopher_too_many_end_ellipsis"),
    *("gopher_below_alpha_threshold", "gopher_enough_stop_words"),
]
OUR_NAMES = {
    **dict(zip(THEIR_GOPHER, GOPHER, strict=True)),
    "lorem_ipsum": "c4_lorem_ipsum",
    "curly_bracket": "c4_curly_bracket",
    "too_few_sentences": "c4_fewest_sentences",
    "line_punct_ratio": "fineweb_line_punctuation",
    "short_line_ratio": "fineweb_short_lines",
    "char_dup_ratio": "fineweb_duplicate_line_characters",
    "list_ratio": "fineweb_newlines",
    "empty": "empty",
}


def real_texts(data: Path) -> list[str]:
    """Return news and pages with more than white space."""
    news = (data / "near_duplicates" / "articles_1000.train").read_text(encoding="utf-8").splitlines()
    texts = [_in_lines(line.partition(" ")[2]) for line in news]
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


def their_decisions(texts: list[str], words: word_tokenizers.WordTokenizer | str) -> list[str]:
    """Return of each text its reason in our words, or in brackets what is left of it."""
    steps, decisions = their_steps(words), []
    for text in texts:
        document = TheirDocument(text=text, id="")
        results = (step.filter(document) for step in steps)
        reason = next((result[1] for result in results if isinstance(result, tuple)), None)
        decisions.append(f"<{document.text}>" if reason is None else OUR_NAMES[reason])
    return decisions


def our_decisions(texts: list[str], settings: FilterSettings, batch_type: type[TextBatch] = TextBatch) -> list[str]:
    """Return of each text its reason, or in brackets what is left of it."""
    rules = [name for name in RULES_ON if not name.startswith("pii")]
    chosen = DocumentFilter(rules, settings, batch_type)
    decided = chosen.decide(pa.array(texts, pa.large_string()), [None] * len(texts))
    kept = iter(decided.texts.to_pylist())
    return [f"<{next(kept)}>" if number == KEPT else chosen.reasons[number] for number in decided.reasons.tolist()]


def spacy_words(texts: Texts) -> Words:
    """Return the words that datatrove finds by spaCy in these texts."""
    tokenizer = word_tokenizers.load_word_tokenizer(Languages.english).tokenizer
    starts: list[int] = []
    ends: list[int] = []
    bounds = [0]
    for begin, end in zip(texts.bounds[:-1], texts.bounds[1:], strict=True):
        text = bytes(texts.data[begin:end]).decode()
        tokenizer.max_length = len(text) + 10
        offsets = begin + np.cumsum([0, *(len(character.encode()) for character in text)])
        for token in tokenizer(text, disable=["parser", "tagger", "ner"]):
            if word := token.text.strip():
                first = token.idx + token.text.index(word)
                starts.append(offsets[first])
                ends.append(offsets[first + len(word)])
        bounds.append(len(starts))
    return sum_words(texts, np.array(starts, np.int64), np.array(ends, np.int64), np.array(bounds))


class SpacyBatch(TextBatch):
    """A batch with the words of spaCy."""

    @cached_property
    def words(self) -> Words:
        """Words that datatrove finds."""
        return spacy_words(self.texts)

    @cached_property
    def word_counts(self) -> NDArray[np.int64]:
        """Number of them."""
        return np.diff(self.words.bounds)


def compare(texts: list[str]) -> dict[str, Any]:
    """Return how many documents the two sides decide differently, and for which reasons."""
    whitespace = SETTINGS.model_copy(update={"words": "whitespace"})
    same_words = _differences(their_decisions(texts, OurSentences()), our_decisions(texts, whitespace))
    theirs = their_decisions(texts, Languages.english)
    on_spacy_words = _differences(theirs, our_decisions(texts, SETTINGS, SpacyBatch))
    defaults = _differences(theirs, our_decisions(texts, SETTINGS))
    between_spaces = _differences(theirs, our_decisions(texts, whitespace))
    return {
        "documents": len(texts),
        "kept_by_datatrove": sum(decision.startswith("<") for decision in theirs),
        "on_the_same_words_and_sentences": same_words,
        "on_spacys_words_and_our_sentences": on_spacy_words,
        "defaults_of_both": defaults,
        "default_of_datatrove_and_words_between_white_space": between_spaces,
    }


def _differences(theirs: list[str], ours: list[str]) -> dict[str, Any]:
    def name(decision: str) -> str:
        return "kept" if decision.startswith("<") else decision

    differ = [(their, our) for their, our in zip(theirs, ours, strict=True) if their != our]
    reasons = Counter(f"{name(their)} / {name(our)}" for their, our in differ)
    kept_or_dropped = sum(their.startswith("<") != our.startswith("<") for their, our in differ)
    return {
        "kept_or_dropped_differently": kept_or_dropped,
        "share_of_equal_decisions": round(1 - kept_or_dropped / len(theirs), 4),
        "reason_or_text_differs": len(differ),
        "datatrove / mtnlg_data": dict(reasons.most_common()),
    }


def run_theirs(shard: Path, out: Path, steps: list[Any]) -> None:
    """Filter the shard by these steps of datatrove."""
    writer = ParquetWriter(str(out / "kept"), compression="zstd")
    pipeline = [ParquetReader(str(shard.parent), glob_pattern=shard.name), *steps, writer]
    LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=str(out / "log")).run()


def families() -> dict[str, tuple[list[str], Callable[[Any], list[Any]]]]:
    """Return rules of mtnlg_data and the same steps of datatrove on given words, by family."""

    def step(number: int) -> Callable[[Any], list[Any]]:
        return lambda words: their_steps(words)[number : number + 1]

    return {
        "gopher_repetition": (RULES_OF["gopher_repetition"], step(0)),
        "gopher_quality": (RULES_OF["gopher_quality"], step(1)),
        "c4": (RULES_OF["c4"], step(2)),
        "fineweb": (RULES_OF["fineweb"], step(3)),
        "pii": (RULES_OF["pii"], lambda _: [PIIFormatter()]),
    }


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure_filters(texts: list[str], rounds: int, sides: tuple[str, ...]) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each family of rules by itself, from texts in memory to decisions, by side and round."""
    batch = next(iter(batch_documents(Document(f"{n}", "web", text) for n, text in enumerate(texts))))
    if batch.num_rows < len(texts):
        raise SystemExit("the texts do not fit into one batch")

    def decide(rules: list[str]) -> None:
        chosen = DocumentFilter(rules, SETTINGS)
        for part in small_batches(batch):
            chosen.decide(part["text"], [None] * part.num_rows)

    seconds: dict[str, dict[str, list[float]]] = {}
    for family, (rules, steps) in families().items():
        seconds[family] = {name: [] for name in sides}
        for number in range(-1, rounds):  # the first compiles and imports
            for name in sorted(sides, reverse=bool(number % 2)):
                words = SIDES[name]
                documents = [TheirDocument(text=text, id="") for text in texts[: 50 if number < 0 else None]]
                before = time.process_time()
                if words is None:
                    decide(rules)
                else:
                    (step,) = steps(words)
                    deque(step.run(iter(documents)), maxlen=0)
                if number >= 0:
                    seconds[family][name].append(time.process_time() - before)
    return seconds


def measure_runs(shard: Path, small: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of all filters, from Parquet to Parquet, by side and round."""
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(-1, rounds):  # the first imports and fills caches
        source = small if number < 0 else shard
        for name in sorted(SIDES, reverse=bool(number % 2)):
            words, out = SIDES[name], shard.parent / f"{name}-{number}"
            before = _cpu_seconds()
            if words is None:
                run_step(Filter(SETTINGS, {"web": {"filters": list(RULES_ON)}}), [source], out, Local(1))
            else:
                run_theirs(source, out, [*their_steps(words), PIIFormatter()])
            if number >= 0:
                seconds[name].append(_cpu_seconds() - before)
    return seconds


def claims(seconds: dict[str, list[float]], megabytes: float) -> dict[str, Any]:
    """Return the ratios against both settings of datatrove, and each side's rate."""
    others = [name for name in ("spacy", "plain") if f"datatrove_{name}" in seconds]
    against = {
        f"against_{name}": claimed_ratio(ratios(seconds[f"datatrove_{name}"], seconds["mtnlg_data"])) for name in others
    }
    return {**against, "megabytes_per_second": rates(megabytes, seconds)}


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--copies", type=int, default=3, help="times that the texts are in the Parquet file")
    parser.add_argument("--plain", action="store_true", help="only each family against the words of str.split")
    options = parser.parse_args()
    texts = real_texts(options.data)
    about = conditions("mtnlg-data", "datatrove", "spacy", "numpy", "numba", "pyarrow")
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    sides = ("mtnlg_data", "datatrove_plain") if options.plain else tuple(SIDES)
    by_family = measure_filters(texts, options.rounds, sides)
    families_alone = {family: claims(seconds, megabytes) for family, seconds in by_family.items()}
    if options.plain:
        size = {"documents": len(texts), "megabytes": round(megabytes, 3), "rounds": options.rounds}
        write_result({"families": families_alone, **size, **about}, options.out)
        return
    decisions = compare(texts)
    with tempfile.TemporaryDirectory() as scratch:
        shard, small = (Path(scratch) / name / "web-00000.parquet" for name in ("in", "small"))
        for path, part in ((shard, texts * options.copies), (small, texts[:50])):
            write_documents(path, batch_documents(Document(f"{n}", "web", text) for n, text in enumerate(part)))
        runs = measure_runs(shard, small, options.rounds)
    result = {
        **claims(runs, megabytes * options.copies),
        "families": families_alone,
        "decisions": decisions,
        "settings": "recipes/fineweb without URL lists; datatrove: the filters' defaults, "
        "C4QualityFilter(filter_no_terminal_punct=False), PIIFormatter()",
        "documents": len(texts),
        "megabytes": round(megabytes, 3),
        "copies": options.copies,
        "rounds": options.rounds,
        **about,
    }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
