# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""Decontamination, equal cuts: mtnlg_data against a plain scan of every 13-gram window, one core.

    python benchmarks/decontamination.py ARTICLES [--ngrams 1000000] [--rounds 5] [--out FILE]

ARTICLES holds one article a line, after its id (articles_1000.train of chrisjmccormick/MinHash). Half of them, and
texts of shuffled words up to the given number of n-grams, are the tasks. Documents consist of sentences of the other
half that occur in no task; one in twenty has a task's passage inserted, and some passages are in more than ten
documents. The plain scan is what the tools of the field do, without their bugs: a dictionary of n-grams, and at every
word of a text a look-up of the joined next words, for each length in the dictionary. Both sides turn Python strings
into the kept pieces, with tables built beforehand; the plain one scans only documents with matches a second time.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from mtnlg_data.decontaminate.cut_planning import plan_cuts
from mtnlg_data.decontaminate.matches import Match, sentence_ends
from mtnlg_data.decontaminate.ngrams import NgramSet, TaskText, task_ngrams
from mtnlg_data.steps.decontaminate import DecontaminateSettings
from mtnlg_data.text.arrays import text_batches
from mtnlg_data.text.characters import fold_case
from record import claimed_ratio, conditions, option_parser, rates, ratios, time_rounds, write_result

SETTINGS = DecontaminateSettings()
DOCUMENTS, SENTENCES, COMMON_PASSAGES = 6000, 12, 5
WORD = re.compile(r"\w+")


def make_corpus(articles: list[str], ngrams: int) -> tuple[list[str], list[str]]:
    """Return task texts with at least ``ngrams`` n-grams, and documents."""
    draw = random.Random(1)
    tasks, others = articles[::2], articles[1::2]
    passages = [" ".join(text.split()[begin : begin + 40]) for text in tasks for begin in range(0, 120, 40)]
    count = sum(max(0, len(text.split()) - SETTINGS.n + 1) for text in tasks)
    texts = list(tasks)
    while count < ngrams:
        words = draw.choice(tasks).split()
        draw.shuffle(words)
        texts.append(" ".join(words))
        count += max(0, len(words) - SETTINGS.n + 1)
    in_tasks = {sentence for text in tasks for sentence in text.split(". ")}
    sentences = [sentence + "." for text in others for sentence in text.split(". ") if sentence not in in_tasks]
    documents = []
    for number in range(DOCUMENTS):
        parts = [draw.choice(sentences) for _ in range(SENTENCES)]
        if number % 20 == 0:
            choices = passages[:COMMON_PASSAGES] if number % 60 == 0 else passages
            parts.insert(draw.randrange(SENTENCES), draw.choice(choices) + ".")
        documents.append(" ".join(parts))
    return texts, documents


class Ours:
    """mtnlg_data, as its stage decontaminates."""

    def __init__(self, texts: list[str]) -> None:
        rows = (TaskText(task="task", id=str(number), text=text) for number, text in enumerate(texts))
        self.ngrams = list(task_ngrams(rows, SETTINGS.n, SETTINGS.minimum))
        self.set = NgramSet(self.ngrams, SETTINGS.minimum)

    def cut(self, documents: list[str]) -> list[list[str]]:
        """Return the kept pieces of every document."""
        first, columns = 0, []
        for texts in text_batches(documents):
            batch = self.set.search(texts)
            columns.append((first + batch.texts, batch.starts, batch.ends, batch.ngrams))
            first += len(texts)
        numbers, starts, ends, ngrams = (np.concatenate(column) for column in zip(*columns, strict=True))
        pairs = np.unique(numbers * len(self.ngrams) + ngrams)
        rare = np.bincount(pairs % len(self.ngrams), minlength=len(self.ngrams))[ngrams] < SETTINGS.common
        numbers, starts, ends, ngrams = numbers[rare], starts[rare], ends[rare], ngrams[rare]
        kept = [[text] for text in documents]
        for first, last in pairwise(np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()):
            own, number = slice(first, last), int(numbers[first])
            text = documents[number]
            around = sentence_ends(text, starts[own], ends[own], SETTINGS.window)
            fields = (column.tolist() for column in (starts[own], ends[own], ngrams[own], *around))
            matches = [Match(*match) for match in zip(*fields, strict=True)]
            pieces, _ = plan_cuts(len(text), matches, SETTINGS.shortest)
            kept[number] = [text[begin:end] for begin, end in pieces] if len(pieces) <= SETTINGS.most_splits else []
        return kept


class Plain:
    """A window scan over a dictionary."""

    def __init__(self, texts: list[str]) -> None:
        self.ngrams: set[str] = set()
        for text in texts:
            words = WORD.findall(fold_case(text))
            if len(words) >= SETTINGS.minimum:
                length = min(SETTINGS.n, len(words))
                self.ngrams.update(" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
        self.lengths = sorted({ngram.count(" ") + 1 for ngram in self.ngrams}, reverse=True)

    def matches(self, text: str) -> list[tuple[int, int, str]]:
        """Return start, end and n-gram of every match."""
        words = [(match.start(), match.end(), match.group()) for match in WORD.finditer(fold_case(text))]
        texts = [word for _, _, word in words]
        return [
            (words[first][0], words[first + length - 1][1], ngram)
            for first in range(len(words))
            for length in self.lengths
            if first + length <= len(words) and (ngram := " ".join(texts[first : first + length])) in self.ngrams
        ]

    def cut(self, documents: list[str]) -> list[list[str]]:
        """Return the kept pieces of every document."""
        document_counts: Counter[str] = Counter()
        matched = []
        for number, text in enumerate(documents):
            if ngrams := {ngram for _, _, ngram in self.matches(text)}:
                document_counts.update(ngrams)
                matched.append(number)
        rare = {ngram for ngram, count in document_counts.items() if count < SETTINGS.common}
        kept = [[text] for text in documents]
        for number in matched:
            if matches := [match for match in self.matches(documents[number]) if match[2] in rare]:
                pieces = self._pieces(documents[number], matches)
                kept[number] = pieces if len(pieces) <= SETTINGS.most_splits else []
        return kept

    @staticmethod
    def _pieces(text: str, matches: list[tuple[int, int, str]]) -> list[str]:
        begin, kept = 0, []
        for start, end, _ in matches:
            if start < begin:
                continue
            if begin and len(text) - begin < SETTINGS.shortest:
                break
            left, right = start - SETTINGS.window, end + SETTINGS.window
            while left > begin and text[left] not in ".!?":
                left -= 1
            while right < len(text) and text[right] not in ".!?":
                right += 1
            kept.append(text[begin : left + 1] if left > begin else "")
            begin = right + 1
        kept.append(text[begin:])
        return [piece for piece in kept if len(piece) >= SETTINGS.shortest]


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__)
    parser.add_argument("articles", type=Path)
    parser.add_argument("--ngrams", type=int, default=1_000_000)
    options = parser.parse_args()
    articles = [line.partition(" ")[2] for line in options.articles.read_text(encoding="utf-8").splitlines()]
    texts, documents = make_corpus(articles, options.ngrams)
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    about = conditions("mtnlg-data", "numpy", "numba")
    build_seconds: dict[str, float] = {}
    sides: dict[str, Ours | Plain] = {}
    makers: dict[str, type[Ours | Plain]] = {"mtnlg_data": Ours, "plain": Plain}
    for name, make in makers.items():
        started = time.process_time()
        sides[name] = make(texts)
        build_seconds[name] = time.process_time() - started
    cuts = {name: side.cut(documents) for name, side in sides.items()}
    seconds = time_rounds({name: partial(side.cut, documents) for name, side in sides.items()}, options.rounds)
    result = {
        **claimed_ratio(ratios(seconds["plain"], seconds["mtnlg_data"])),
        "megabytes_per_second": rates(megabytes, seconds),
        "equal_cuts": cuts["mtnlg_data"] == cuts["plain"],
        "documents": len(documents),
        "documents_cut": sum(kept != [text] for kept, text in zip(cuts["plain"], documents, strict=True)),
        "megabytes": round(megabytes, 3),
        "ngrams": len(sides["mtnlg_data"].ngrams),
        "seconds_to_build_the_table": {name: round(each, 2) for name, each in build_seconds.items()},
        "seconds_of_one_core": seconds,
        **about,
    }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
