"""The fifteen datasets of MT-NLG's corpus (paper.md 4.1), as a recipe may name them.

A recipe's source that bears one of these names takes its weight, its subset of the Pile and its cleaning from here.
They stand in the order of our priority: of duplicates the copy from the first of them is kept. The paper's own order is
not published; ours puts edited texts first, then what people chose to share, then the crawls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: A step that the names of a dataset's shards tell of: ftfy; white space made single; documents numbered; duplicates
#: taken out (at Jaccard 0.7, before the rest) or documents shuffled by an earlier project.
Step = Literal["ftfy", "cleaned", "id", "dedup", "shuf"]


@dataclass(frozen=True)
class Dataset:
    """One of the fifteen. Exactly one of ``subset`` and ``snapshot`` is given, or neither: files of one's own."""

    name: str
    tokens: float  # billions
    weight: float  # share of the training samples
    epochs: float  # that 270 B training tokens make of it, as printed
    steps: tuple[Step, ...]  # in their order
    subset: str | None = None  # of the Pile: its meta.pile_set_name
    snapshot: str | None = None  # of Common Crawl

    @property
    def whitespace(self) -> bool:
        """Whether runs of spaces and broken lines were made one space."""
        return "cleaned" in self.steps


CORPUS = (
    Dataset("Books3", 25.7, 0.14336, 1.5, ("ftfy", "cleaned", "id"), "Books3"),
    Dataset("Wikipedia", 4.2, 0.04771, 3.2, ("ftfy", "id"), "Wikipedia (en)"),
    Dataset("Gutenberg", 2.7, 0.00873, 0.9, ("ftfy", "cleaned", "id", "cleaned"), "Gutenberg (PG-19)"),
    Dataset("BookCorpus2", 1.5, 0.01007, 1.8, ("ftfy", "cleaned", "id"), "BookCorpus2"),
    Dataset("OpenWebText2", 14.8, 0.19336, 3.6, ("ftfy", "cleaned", "id"), "OpenWebText2"),
    Dataset("PubMed-Abstracts", 4.4, 0.02897, 1.8, ("ftfy", "id"), "PubMed Abstracts"),
    Dataset("NIH-ExPorter", 0.3, 0.00208, 1.8, ("ftfy", "id"), "NIH ExPorter"),
    Dataset("ArXiv", 20.8, 0.01359, 0.2, ("ftfy", "cleaned", "id"), "ArXiv"),
    Dataset("StackExchange", 11.6, 0.05689, 1.4, ("ftfy", "id"), "StackExchange"),
    Dataset("GitHub", 24.3, 0.01588, 0.2, ("ftfy", "id"), "Github"),
    Dataset("RealNews", 21.9, 0.08962, 1.1, ("dedup", "shuf", "cleaned", "cleaned")),
    Dataset("CC-Stories", 5.3, 0.00859, 0.5, ("dedup", "shuf", "cleaned")),
    Dataset("Pile-CC", 49.8, 0.09446, 0.5, ("id", "cleaned"), "Pile-CC"),
    Dataset("CC-2021-04", 82.6, 0.15652, 0.5, ("id", "cleaned"), snapshot="CC-MAIN-2021-04"),
    Dataset("CC-2020-50", 68.7, 0.13017, 0.5, ("id", "cleaned"), snapshot="CC-MAIN-2020-50"),
)
DATASETS = {dataset.name: dataset for dataset in CORPUS}
