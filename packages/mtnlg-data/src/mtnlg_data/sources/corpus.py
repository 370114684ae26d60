"""The fifteen datasets of MT-NLG's training corpus (paper.md 4.1).

A recipe's source with one of these names takes its weight, subset of the Pile and cleaning rules from here. The order
is the priority of deduplication: of duplicates, the copy in the first dataset is kept. The paper does not publish its
order; ours puts edited texts first, then texts that people chose to share, then crawls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: A processing step, from the names of the paper's shards: ftfy; whitespace collapsed; documents numbered; deduplicated
#: (at Jaccard 0.7, before the rest) or shuffled by an earlier project.
Step = Literal["ftfy", "cleaned", "id", "dedup", "shuf"]


@dataclass(frozen=True)
class Dataset:
    """One dataset: a ``subset`` of the Pile, a Common Crawl ``snapshot``, or, with neither, files of another origin."""

    name: str
    tokens: float  # billions
    weight: float  # share of the training samples
    epochs: float  # in 270 B training tokens, as the paper prints it
    steps: tuple[Step, ...]  # in order
    subset: str | None = None  # meta.pile_set_name in the Pile
    snapshot: str | None = None  # Common Crawl

    @property
    def whitespace(self) -> bool:
        """Whether the paper collapsed runs of spaces and broken lines."""
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
