"""Links → clusters of candidates: connected components, in memory or by rounds over ranges of documents.

Documents that are connected by shared band keys form a cluster, and a duplicate is always in the same cluster as its
twin. A cluster goes by its lowest document, the root.

Links are runs by document, each link under both of its ends. Up to ``FOREST_ROWS`` of them are united in one unit. More
are contracted first, in rounds of two steps (Kiveris et al. 2014), in which a unit looks at the links of its range of
documents, as a stream:

    large star   a document links its neighbours above it to the lowest of its neighbours and itself
    small star   a document links its neighbours below it, and itself, to the lowest of these

Each step keeps what is connected. When neither changes a link, all links lead to roots.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mtnlg_data.exchange import KEYS

from .runs import LIBRARY_BYTES, Corpus, Exchanged, RunUnit, RunWriter, merge_runs, write_runs
from .union_find import reduce_links

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary

FOREST_ROWS = 1 << 22  # ends of links that one unit unites
LINK_MEMORY_BYTES = 100  # of a link while it is united with others
LINKS_REDUCED = 1 << 19  # links that a unit reduces to a forest together before it writes them

Step = Literal["large", "small", "label"]
STEPS: tuple[Step, Step] = ("large", "small")  # of a round


class LinkWriter:
    """Writes links under both of their ends, a forest in place of each ``LINKS_REDUCED`` of them."""

    def __init__(self, runs: RunWriter, corpus: Corpus) -> None:
        self._runs = runs
        self._corpus = corpus
        self._waiting: list[NDArray[np.int64]] = []
        self._count = 0

    @property
    def rows(self) -> int:
        """Ends of links written."""
        return self._runs.rows

    def add(self, links: NDArray[np.int64]) -> None:
        """Add links [links, 2]."""
        while len(links):
            part, links = np.split(links, [LINKS_REDUCED - self._count])
            self._waiting.append(part)
            self._count += len(part)
            if self._count == LINKS_REDUCED:
                self.flush()

    def flush(self) -> None:
        """Write the links added so far."""
        if self._count:
            links = reduce_links(np.concatenate(self._waiting))
            both = np.concatenate([links, links[:, ::-1]])
            self._runs.add(self._corpus.keys(both[:, 0]), {"other": both[:, 1]})
        self._waiting, self._count = [], 0


@contextmanager
def write_links(output: Path, corpus: Corpus) -> Iterator[LinkWriter]:
    """A writer of the links of this file."""
    with write_runs(output) as runs:
        links = LinkWriter(runs, corpus)
        yield links
        links.flush()
        runs.flush()


@dataclass(frozen=True)
class StarUnit(RunUnit):
    """Unit: the links of one range of documents → the links that a step makes of them; or each document's root."""

    corpus: Corpus
    step: Step
    number: int  # of the range
    links: Exchanged
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("star", self.corpus.digest, self.step, self.links.folder.name, self.number, self.links.ranges)


def write_stars(unit: StarUnit) -> Summary:
    """Write one range of a step; ``changed`` of the summary counts the links that did not lead to roots already."""
    first, last = unit.corpus.bounds(unit.number, unit.links.ranges)
    documents = np.arange(first, last + 1, dtype=np.int64)
    lowest, is_linked = documents.copy(), np.zeros(len(documents), np.bool_)
    for table in unit.links.read(unit.number):
        rows = unit.corpus.numbers(table["sort"].to_numpy()) - first
        np.minimum.at(lowest, rows, table["other"].to_numpy())
        is_linked[rows] = True
    if unit.step == "label":
        with write_runs(unit.output) as runs:
            runs.add(unit.corpus.keys(documents[is_linked]), {"root": lowest[is_linked]})
        return {"candidates": int(is_linked.sum())}
    changed = 0
    with write_links(unit.output, unit.corpus) as links:
        for table in unit.links.read(unit.number):
            document = unit.corpus.numbers(table["sort"].to_numpy())
            other, low = table["other"].to_numpy(), lowest[document - first]
            moved = other > document if unit.step == "large" else (other < document) & (other != low)
            changed += int((moved & (low != document)).sum())
            links.add(np.stack([other[moved], low[moved]], axis=1))
        if unit.step == "small":
            has_lower = lowest < documents
            links.add(np.stack([documents[has_lower], lowest[has_lower]], axis=1))
    return {"rows": links.rows, "changed": changed}


@dataclass(frozen=True)
class ForestUnit(RunUnit):
    """Unit: all links, where they fit into memory → each linked document's root, by document."""

    corpus: Corpus
    links: Exchanged
    rows: int  # of the links, each under both ends
    output: Path

    @property
    def memory(self) -> int:
        """All links, while they are united."""
        return LIBRARY_BYTES + LINK_MEMORY_BYTES * self.rows // 2

    def _key_parts(self) -> tuple[object, ...]:
        return ("forest", self.corpus.digest, self.links.folder.name)


def write_forest(unit: ForestUnit) -> Summary:
    """Write the roots of all linked documents."""
    links = [np.empty((0, 2), np.int64)]
    for number in range(unit.links.files):
        for table in merge_runs([unit.links.path(number)], 0, KEYS - 1):
            document, other = unit.corpus.numbers(table["sort"].to_numpy()), table["other"].to_numpy()
            links.append(np.stack([document, other], axis=1)[other < document])
    stars = reduce_links(np.concatenate(links))
    roots = np.unique(stars[:, 1])
    documents = np.concatenate([stars[:, 0], roots])
    with write_runs(unit.output) as runs:
        runs.add(unit.corpus.keys(documents), {"root": np.concatenate([stars[:, 1], roots])})
    return {"candidates": len(documents)}
