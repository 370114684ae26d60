"""Occurrences of the tasks' n-grams in the documents, and what is cut of each document for them (paper.md 4.4).

write_ngrams      the n-grams of the task texts
scan_shard        every match in a shard, as numbers; later tasks decide from these and read no text
choose_rare       n-grams in ``common`` documents or more, over all shards, are not cut
plan_shard        what is kept and cut of each document
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.document import read_documents
from mtnlg_data.exchange import begins
from mtnlg_data.extract.language import language_code
from mtnlg_data.files import atomic_open, atomic_path
from mtnlg_data.schema import required
from mtnlg_data.text.arrays import small_batches
from mtnlg_data.text.characters import SOUTHEAST_ASIAN, character_kinds, code_points

from .ngrams import NgramSet, read_task_texts, task_ngrams

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Bools, Int64s, UInt32s
    from mtnlg_data.document import Shard
    from mtnlg_data.fingerprint import File
    from mtnlg_data.job import Done
    from mtnlg_data.summary import Summary

#: . ! ? as in the paper, and the marks of other scripts: Chinese and Japanese, Arabic and Urdu, Hindi, Armenian,
#: Amharic, Tibetan, Khmer, Burmese.
SENTENCE_ENDS = code_points(
    ".!?\u3002\uff01\uff1f\uff0e\uff61\u061f\u06d4\u0964\u0965\u0589\u1362\u0f0d\u17d4\u17d5\u104b"
)
NGRAM_SCHEMA = pa.schema(
    {
        "ngram": pa.large_string(),
        "tasks": pa.list_(pa.string()),  # of every text with this n-gram
        "ids": pa.list_(pa.string()),
    }
)
MATCH_COLUMNS = ("row", "length", "start", "end", "ngram", "stop", "resume")
#: ``row`` and ``length`` of the document, then a ``Match``; ``is_first`` marks an n-gram's first match in a document.
MATCH_SCHEMA = pa.schema([*required(pa.int64(), *MATCH_COLUMNS), *required(pa.bool_(), "is_first")])


class Match(NamedTuple):
    """One n-gram in one text, characters ``start`` up to ``end``, and the sentence ends around it.

    ``stop`` is the position of the last sentence's end at least ``window`` characters before the match, or -1;
    ``resume`` is the position of the first sentence's end at least as far after it, or the length of the text.
    """

    start: int
    end: int
    ngram: int
    stop: int
    resume: int


class Cut(NamedTuple):
    """Characters ``start`` up to ``end`` of a text, cut for one match."""

    match: Match
    start: int
    end: int


class CutPlan(NamedTuple):
    """What happens to a document with matches: the spans kept, or the reason to drop the whole document."""

    kept: list[tuple[int, int]]
    cuts: list[Cut]
    reason: str | None


def write_ngrams(texts: File | None, output: Path, *, n: int, minimum: int) -> Summary:
    """Write the n-grams of a file of task texts, sorted; none without a file."""
    ngrams = task_ngrams(read_task_texts(texts.path) if texts else (), n, minimum)
    tasks, ids = ([[origin[part] for origin in origins] for origins in ngrams.values()] for part in (0, 1))
    with atomic_path(output) as partial:
        pq.write_table(pa.table([list(ngrams), tasks, ids], schema=NGRAM_SCHEMA), partial, compression="zstd")
    return {"ngrams": len(ngrams)}


def scan_shard(item: tuple[Shard, Mapping[str, int]], output: Path, *, ngrams: Done, minimum: int) -> Summary:
    """Write the matches of one shard, a table of ``MATCH_SCHEMA``; ``item`` is the shard, and windows by language."""
    shard, windows = item
    found = _load_ngrams(ngrams, minimum)
    first = matches = 0
    with atomic_path(output) as partial, pq.ParquetWriter(partial, MATCH_SCHEMA, compression="zstd") as writer:
        for batch in read_documents(shard.path, ["language", "text"]) if len(found) else ():
            for part in small_batches(batch):
                table = _match_table(part, first, found, windows)
                if table.num_rows:
                    writer.write(table)
                matches += table.num_rows
                first += part.num_rows
    return {"matches": matches}


@lru_cache(maxsize=1)  # once per worker
def _load_ngrams(ngrams: Done, minimum: int) -> NgramSet:
    return NgramSet(pq.read_table(ngrams.output, columns=["ngram"])["ngram"].to_pylist(), minimum)


def _match_table(batch: pa.RecordBatch, first_row: int, ngrams: NgramSet, windows: Mapping[str, int]) -> pa.Table:
    texts, languages = (batch[name].to_pylist() for name in ("text", "language"))
    matches = ngrams.search(texts)
    lengths = np.array([len(text) for text in texts], np.int64)[matches.texts]
    stops, resumes = np.empty_like(lengths), np.empty_like(lengths)
    for begin, end in pairwise([*np.flatnonzero(begins(matches.texts)).tolist(), len(lengths)]):
        part, text = slice(begin, end), matches.texts[begin]
        window = windows.get(language_code(languages[text]), windows[""])
        stops[part], resumes[part] = sentence_ends(texts[text], matches.starts[part], matches.ends[part], window)
    pairs = matches.texts * len(ngrams) + matches.ngrams
    is_first = np.zeros(len(pairs), np.bool_)
    is_first[np.unique(pairs, return_index=True)[1]] = True
    columns = [first_row + matches.texts, lengths, matches.starts, matches.ends, matches.ngrams, stops, resumes]
    return pa.table([*columns, is_first], schema=MATCH_SCHEMA)


def sentence_ends(text: str, starts: Int64s, ends: Int64s, window: int) -> tuple[Int64s, Int64s]:
    """``Match.stop`` and ``Match.resume`` of matches of a text."""
    codes = code_points(text)
    marks = np.flatnonzero(_ends_sentence(codes))
    bounded = np.concatenate([[-1], marks, [len(text)]])
    before = np.searchsorted(marks, starts - window, side="right")
    after = np.searchsorted(marks, ends + window, side="left")
    return bounded[before], bounded[after + 1]


def _ends_sentence(codes: UInt32s) -> Bools:
    """Which characters end a sentence; after a letter of Thai, Lao or Burmese, which need no mark, a space does."""
    after_letter = np.concatenate([[False], character_kinds()[codes[:-1]] == SOUTHEAST_ASIAN])
    return np.isin(codes, SENTENCE_ENDS) | (after_letter & np.isin(codes, code_points(" \n")))


def choose_rare(matches: Sequence[Done], output: Path, *, ngrams: Done, common: int) -> Summary:
    """Write bool[n-grams], True where an n-gram is rare enough to be cut, from the matches of all shards.

    Takes 8 bytes of memory per n-gram.
    """
    documents = np.zeros(pq.read_metadata(ngrams.output).num_rows, np.int64)
    for done in matches:
        with pq.ParquetFile(done.output) as file:
            for batch in file.iter_batches(columns=["ngram", "is_first"]):
                is_first = batch["is_first"].to_numpy(zero_copy_only=False)
                np.add.at(documents, batch["ngram"].to_numpy()[is_first], 1)
    with atomic_open(output) as file:
        np.save(file, documents < common)
    return {"common": int((documents >= common).sum())}


def plan_shard(path: Path, rare: Path, shortest: int, most_splits: int) -> Iterator[tuple[int, CutPlan]]:
    """Yield row and plan of each document with matches to cut, in order, from the files of matches and rare n-grams."""
    is_cut = np.load(rare)
    with pq.ParquetFile(path) as file:
        batches = file.iter_batches(columns=list(MATCH_COLUMNS))
        to_cut = (batch.filter(pa.array(is_cut[batch["ngram"].to_numpy()], pa.bool_())) for batch in batches)
        rows = (row for batch in to_cut for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for (row, length), matches in groupby(rows, itemgetter(0, 1)):
            kept, cuts = plan_cuts(length, (Match(*match) for _, _, *match in matches), shortest)
            reason = "contaminated" if not kept else "split" if len(kept) > most_splits else None
            yield row, CutPlan(kept, cuts, reason)


def plan_cuts(length: int, matches: Iterable[Match], shortest: int) -> tuple[list[tuple[int, int]], list[Cut]]:
    """Spans kept and cuts made in a text of this length, given its matches in order of start."""
    begin = 0
    kept: list[tuple[int, int]] = []
    cuts: list[Cut] = []
    for match in matches:
        if match.start < begin:
            continue
        if begin and length - begin < shortest:
            break
        stop = match.stop + 1 if match.stop > begin else begin
        kept.append((begin, stop))
        begin = min(match.resume + 1, length)
        cuts.append(Cut(match, stop, begin))
    kept.append((begin, length))
    return [(start, end) for start, end in kept if end - start >= max(1, shortest)], cuts
