"""The fifteen datasets of MT-NLG's training corpus (paper.md 4.1).

A recipe's source with one of these names takes its weight, subset of the Pile and cleaning rules from here. The order
is the priority of deduplication: of duplicates, the copy in the first dataset is kept. The paper does not publish its
order; ours puts edited texts first, then texts that people chose to share, then crawls.
"""

from __future__ import annotations

from typing import NamedTuple


class Dataset(NamedTuple):
    """One dataset: a subset of the Pile if ``subset`` is set, otherwise a crawl."""

    name: str
    tokens: float  # billions
    weight: float  # share of the training samples
    whitespace: bool  # whether the paper collapsed runs of spaces and broken lines, "cleaned" in its shards' names
    subset: str | None = None  # meta.pile_set_name in the Pile


CORPUS = (
    Dataset("Books3", 25.7, 0.14336, True, "Books3"),
    Dataset("Wikipedia", 4.2, 0.04771, False, "Wikipedia (en)"),
    Dataset("Gutenberg", 2.7, 0.00873, True, "Gutenberg (PG-19)"),
    Dataset("BookCorpus2", 1.5, 0.01007, True, "BookCorpus2"),
    Dataset("OpenWebText2", 14.8, 0.19336, True, "OpenWebText2"),
    Dataset("PubMed-Abstracts", 4.4, 0.02897, False, "PubMed Abstracts"),
    Dataset("NIH-ExPorter", 0.3, 0.00208, False, "NIH ExPorter"),
    Dataset("ArXiv", 20.8, 0.01359, True, "ArXiv"),
    Dataset("StackExchange", 11.6, 0.05689, False, "StackExchange"),
    Dataset("GitHub", 24.3, 0.01588, False, "Github"),
    Dataset("RealNews", 21.9, 0.08962, True),
    Dataset("CC-Stories", 5.3, 0.00859, True),
    Dataset("Pile-CC", 49.8, 0.09446, True, "Pile-CC"),
    Dataset("CC-2021-04", 82.6, 0.15652, True),
    Dataset("CC-2020-50", 68.7, 0.13017, True),
)
DATASETS = {dataset.name: dataset for dataset in CORPUS}
