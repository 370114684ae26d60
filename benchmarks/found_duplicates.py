"""What deduplication found of a known crawl: recall and precision, against exact similarities of what it read.

The truth of a pair is the Jaccard similarity of the word shingles of the two cleaned texts, computed here with Python's
sets. All pairs within sampled families are taken, the template's and the most copied ones among them, of at most
``MEMBERS`` members each, and documents that were removed for one of another family. A pair is found if both are in one
component of the ledger. A removed document is wrong if neither the document that was kept for it nor any sampled member
of its family reaches the threshold.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from known_crawl import FIRST, TEMPLATE_FAMILY, jaccard, shingles
from mtnlg_data.text.hashing import fmix64

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FAMILIES, MEMBERS, MOST_STRANGE = 2000, 40, 200
CLASSES = (0.8, 0.85, 0.9, 0.95, 1.0)  # least similarity of each class of pairs
NONE = -2


class Ledger:
    """Of each page of the crawl: the component that it is in, and the page that was kept in its place."""

    def __init__(self, paths: list[Path], pages: int, pages_a_file: int) -> None:
        self.component = np.full(pages, NONE, np.int64)
        self.kept = np.full(pages, NONE, np.int64)
        columns = ["key", "kept_key", "component"]
        for batch in chain.from_iterable(pq.ParquetFile(path).iter_batches(columns=columns) for path in paths):
            removed, kept = (page_numbers(batch[name], pages_a_file) for name in ("key", "kept_key"))
            components = batch["component"].to_numpy()
            for side in (removed, kept):
                self.component[side[side >= 0]] = components[side >= 0]
            self.kept[removed[removed >= 0]] = kept[removed >= 0]


def page_numbers(keys: pa.Array, pages_a_file: int) -> NDArray[np.int64]:
    """The pages of these keys, ``crawl/FILE/NUMBER``; ``NONE`` for documents of other sources.

    The crawl's files are smaller than a shard, so none is read in parts, whose records have numbers of their own.
    """
    numbers = np.full(len(keys), NONE, np.int64)
    for row, key in enumerate(keys.to_pylist()):
        if key.startswith("crawl/"):
            *_, file, number = key.split("/")
            numbers[row] = int(file.partition(".")[0]) * pages_a_file + int(number)
    return numbers


def judge(out: Path, truth: Path, pages_a_file: int, threshold: float, theory: tuple[int, int]) -> dict[str, Any]:
    """Recall by class of similarity, beside that of LSH alone (``theory``: bands, rows), and precision."""
    family = np.concatenate([pq.read_table(path)["family"].to_numpy() for path in sorted(truth.glob("*.parquet"))])
    parts = sorted((out / "04-deduplicate" / "dropped").glob("duplicates-*.parquet"))
    ledger = Ledger(parts, len(family), pages_a_file)
    sampled = sample(family)
    removed = np.flatnonzero(ledger.kept >= 0)
    strange = removed[family[removed] != family[ledger.kept[removed]]]
    sampled = np.union1d(sampled, strange[:MOST_STRANGE])
    kept = ledger.kept[sampled]
    wanted = np.zeros(len(family), np.bool_)
    wanted[sampled] = wanted[kept[kept >= 0]] = True
    sets = {page: shingles(text) for page, text in texts(out / "03-clean", wanted, pages_a_file)}
    members: dict[int, list[int]] = defaultdict(list)
    for page in sampled.tolist():
        if page in sets:
            members[int(family[page])].append(page)
    instead = {page: int(ledger.kept[page]) for page in sets}
    nearest = {page: jaccard(sets[page], sets[other]) for page, other in instead.items() if other in sets}
    pairs: list[tuple[float, bool]] = []
    for of_family in members.values():
        for one, other in combinations(of_family, 2):
            similarity = jaccard(sets[one], sets[other])
            for page in {one, other} & nearest.keys():
                nearest[page] = max(nearest[page], similarity)
            if similarity >= threshold:
                pairs.append((similarity, ledger.component[one] == ledger.component[other] != NONE))
    similarities, found = np.array(pairs).T
    expected = 1 - (1 - similarities ** theory[1]) ** theory[0]
    recall_by_similarity = {}
    for least, next_least in pairwise((*CLASSES, 2.0)):
        of_class = (similarities >= least) & (similarities < next_least)
        if of_class.any():
            figures = {"recall": found[of_class].mean(), "lsh_alone": expected[of_class].mean()}
            recall_by_similarity[f"{least:g}"] = {"pairs": int(of_class.sum()), **figures}
    wrong = [page for page, similarity in nearest.items() if similarity < threshold]
    return {
        "pages_removed": len(removed),
        "removed_for_one_of_another_family": len(strange),
        "pairs": len(pairs),
        "recall": found.mean(),
        "recall_by_similarity": recall_by_similarity,
        "removed_judged": len(nearest),
        "precision": 1 - len(wrong) / max(1, len(nearest)),
    }


def sample(family: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pages of about ``FAMILIES`` families with several members, up to ``MEMBERS`` of each, its original among them."""
    page = np.arange(len(family))
    distinct, counts = np.unique(family, return_counts=True)
    distinct = distinct[counts > 1]
    by_hash = distinct[np.argsort(fmix64(distinct.astype(np.uint64)))][:FAMILIES]
    known = np.isin(family, [*by_hash.tolist(), TEMPLATE_FAMILY, *range(FIRST, 20)])
    order = page[known][
        np.lexsort((fmix64(page[known].astype(np.uint64)), page[known] != family[known], family[known]))
    ]
    begins = np.flatnonzero(np.append(True, np.diff(family[order]) != 0))
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return order[rank < MEMBERS]


def texts(shards: Path, wanted: NDArray[np.bool_], pages_a_file: int) -> Iterator[tuple[int, str]]:
    """The wanted pages of a stage's shards, with their texts."""
    for path in sorted(shards.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=["key", "text"]):
            pages = page_numbers(batch["key"], pages_a_file)
            rows = np.flatnonzero((pages >= 0) & wanted[pages])
            yield from zip(pages[rows].tolist(), batch["text"].take(pa.array(rows)).to_pylist(), strict=True)
