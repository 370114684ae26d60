# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""Decontamination, equal cuts: mtnlg_data against a plain scan of every 13-gram window, one core.

    python benchmarks/decontamination.py ARTICLES [--ngrams 1000000] [--rounds 5] [--out FILE]

ARTICLES holds an article a line after its id (articles_1000.train of chrisjmccormick/MinHash). Half of them, and texts
of shuffled words up to the wanted number of n-grams, are the tasks; documents are made of sentences of the other half
that stand in no task, one in twenty with a passage of a task put in, some passages in more than ten documents. The
plain scan is what the tools of the field do, less their bugs: a dictionary of n-grams, and at every word of a text a
look-up of the words from there, joined, for each length there is. Both sides take Python strings to the pieces that are
kept, with their tables made before; the plain one scans a second time only the documents that hold anything.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from mtnlg_data.decontaminate.cut_planning import DecontaminateSettings, pieces
from mtnlg_data.decontaminate.matches import Match, sentence_ends
from mtnlg_data.decontaminate.ngrams import NgramSet, TaskText, task_ngrams
from mtnlg_data.words import fold, portions
from record import conditions, keep

HOW = DecontaminateSettings()
DOCUMENTS, SENTENCES, COMMON_PASSAGES = 6000, 12, 5
WORD = re.compile(r"\w+")


def corpus(articles: list[str], wanted: int) -> tuple[list[str], list[str]]:
    """Task texts and documents."""
    draw = random.Random(1)
    tasks, others = articles[::2], articles[1::2]
    passages = [" ".join(text.split()[begin : begin + 40]) for text in tasks for begin in range(0, 120, 40)]
    count = sum(max(0, len(text.split()) - HOW.n + 1) for text in tasks)
    texts = list(tasks)
    while count < wanted:
        words = draw.choice(tasks).split()
        draw.shuffle(words)
        texts.append(" ".join(words))
        count += max(0, len(words) - HOW.n + 1)
    asked = {sentence for text in tasks for sentence in text.split(". ")}
    sentences = [sentence + "." for text in others for sentence in text.split(". ") if sentence not in asked]
    documents = []
    for number in range(DOCUMENTS):
        parts = [draw.choice(sentences) for _ in range(SENTENCES)]
        if number % 20 == 0:
            known = passages[:COMMON_PASSAGES] if number % 60 == 0 else passages
            parts.insert(draw.randrange(SENTENCES), draw.choice(known) + ".")
        documents.append(" ".join(parts))
    return texts, documents


class Ours:
    """mtnlg_data, as its stage does it."""

    def __init__(self, texts: list[str]) -> None:
        rows = (TaskText(task="task", id=str(number), text=text) for number, text in enumerate(texts))
        self.ngrams = list(task_ngrams(rows, HOW.n, HOW.minimum))
        self.set = NgramSet(self.ngrams, HOW.minimum)

    def cut(self, documents: list[str]) -> list[list[str]]:
        """What is kept of every document."""
        first, found = 0, []
        for texts in portions(documents):
            some = self.set.search(texts)
            found.append((first + some.texts, some.starts, some.ends, some.ngrams))
            first += len(texts)
        of, starts, ends, ngrams = (np.concatenate(column) for column in zip(*found, strict=True))
        holders = np.bincount(np.unique(of * len(self.ngrams) + ngrams) % len(self.ngrams), minlength=len(self.ngrams))
        rare = holders[ngrams] < HOW.common
        of, starts, ends, ngrams = of[rare], starts[rare], ends[rare], ngrams[rare]
        left = [[text] for text in documents]
        cuts = np.flatnonzero(np.diff(of, prepend=-1, append=-1)).tolist()
        for first, last in pairwise(cuts):
            here, number = slice(first, last), int(of[first])
            text = documents[number]
            around = sentence_ends(text, starts[here], ends[here], HOW.window)
            matches = [
                Match(*m)
                for m in zip(*(c.tolist() for c in (starts[here], ends[here], ngrams[here], *around)), strict=True)
            ]
            kept, _ = pieces(len(text), matches, HOW.shortest)
            left[number] = [text[begin:end] for begin, end in kept] if len(kept) <= HOW.most_splits else []
        return left


class Plain:
    """A window scan over a dictionary."""

    def __init__(self, texts: list[str]) -> None:
        self.ngrams: set[str] = set()
        for text in texts:
            words = WORD.findall(fold(text))
            if len(words) >= HOW.minimum:
                length = min(HOW.n, len(words))
                self.ngrams.update(" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
        self.lengths = sorted({ngram.count(" ") + 1 for ngram in self.ngrams}, reverse=True)

    def matches(self, text: str) -> list[tuple[int, int, str]]:
        """Every match: where, and which."""
        words = [(match.start(), match.end(), match.group()) for match in WORD.finditer(fold(text))]
        only = [word for _, _, word in words]
        return [
            (words[first][0], words[first + length - 1][1], ngram)
            for first in range(len(words))
            for length in self.lengths
            if first + length <= len(words) and (ngram := " ".join(only[first : first + length])) in self.ngrams
        ]

    def cut(self, documents: list[str]) -> list[list[str]]:
        """What is kept of every document."""
        holders: Counter[str] = Counter()
        held = []
        for number, text in enumerate(documents):
            if known := {ngram for _, _, ngram in self.matches(text)}:
                holders.update(known)
                held.append(number)
        rare = {ngram for ngram, count in holders.items() if count < HOW.common}
        left = [[text] for text in documents]
        for number in held:
            found = [match for match in self.matches(documents[number]) if match[2] in rare]
            if found:
                kept = self._pieces(documents[number], found)
                left[number] = kept if len(kept) <= HOW.most_splits else []
        return left

    @staticmethod
    def _pieces(text: str, matches: list[tuple[int, int, str]]) -> list[str]:
        begin, kept = 0, []
        for start, end, _ in matches:
            if start < begin:
                continue
            if begin and len(text) - begin < HOW.shortest:
                break
            left, right = start - HOW.window, end + HOW.window
            while left > begin and text[left] not in ".!?":
                left -= 1
            while right < len(text) and text[right] not in ".!?":
                right += 1
            kept.append(text[begin : left + 1] if left > begin else "")
            begin = right + 1
        kept.append(text[begin:])
        return [piece for piece in kept if len(piece) >= HOW.shortest]


def main() -> None:
    """Run and print, and write to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("articles", type=Path)
    parser.add_argument("--ngrams", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    articles = [line.partition(" ")[2] for line in options.articles.read_text(encoding="utf-8").splitlines()]
    texts, documents = corpus(articles, options.ngrams)
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    about = conditions("mtnlg-data", "numpy", "numba")
    built: dict[str, float] = {}
    ways: dict[str, Ours | Plain] = {}
    for name, side in (("mtnlg_data", Ours), ("plain", Plain)):
        started = time.process_time()
        ways[name] = Ours(texts) if side is Ours else Plain(texts)
        built[name] = time.process_time() - started
    cuts = {name: way.cut(documents) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            started = time.process_time()
            ways[name].cut(documents)
            seconds[name].append(time.process_time() - started)
    ratios = [one / other for one, other in zip(seconds["plain"], seconds["mtnlg_data"], strict=True)]
    result = {
        "ratio": round(statistics.median(ratios), 1),
        "ratio_spread": [round(min(ratios), 1), round(max(ratios), 1)],
        "megabytes_per_second": {name: round(megabytes / statistics.median(of), 2) for name, of in seconds.items()},
        "equal_cuts": cuts["mtnlg_data"] == cuts["plain"],
        "documents": len(documents),
        "documents_cut": sum(kept != [text] for kept, text in zip(cuts["plain"], documents, strict=True)),
        "megabytes": round(megabytes, 3),
        "ngrams": len(ways["mtnlg_data"].ngrams),
        "seconds_to_build_the_table": {name: round(took, 2) for name, took in built.items()},
        "seconds_of_one_core": seconds,
        **about,
    }
    keep(result, options.out)


if __name__ == "__main__":
    main()
