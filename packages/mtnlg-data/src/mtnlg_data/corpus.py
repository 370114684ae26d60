"""The fifteen datasets of MT-NLG's corpus (paper.md 4.1), as a recipe may name them.

A recipe's source that bears one of these names takes its weight, its subset of the Pile and its cleaning from here.
They stand in the order of our priority: of duplicates the copy from the first of them is kept. The paper's own order is
not published; ours puts edited texts first, then what people chose to share, then the crawls.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dataset:
    """One of the fifteen."""

    name: str
    tokens: float  # billions
    weight: float  # share of the training samples
    epochs: float  # that 270 B training tokens make of it, as printed
    subset: str | None = None  # its meta.pile_set_name
    whitespace: bool = True  # whether its shards were "cleaned": runs of spaces and broken lines made one space


CORPUS = (
    Dataset("Books3", 25.7, 0.14336, 1.5, "Books3"),
    Dataset("Wikipedia", 4.2, 0.04771, 3.2, "Wikipedia (en)", whitespace=False),
    Dataset("Gutenberg", 2.7, 0.00873, 0.9, "Gutenberg (PG-19)"),
    Dataset("BookCorpus2", 1.5, 0.01007, 1.8, "BookCorpus2"),
    Dataset("OpenWebText2", 14.8, 0.19336, 3.6, "OpenWebText2"),
    Dataset("PubMed-Abstracts", 4.4, 0.02897, 1.8, "PubMed Abstracts", whitespace=False),
    Dataset("NIH-ExPorter", 0.3, 0.00208, 1.8, "NIH ExPorter", whitespace=False),
    Dataset("ArXiv", 20.8, 0.01359, 0.2, "ArXiv"),
    Dataset("StackExchange", 11.6, 0.05689, 1.4, "StackExchange", whitespace=False),
    Dataset("GitHub", 24.3, 0.01588, 0.2, "Github", whitespace=False),
    Dataset("RealNews", 21.9, 0.08962, 1.1),
    Dataset("CC-Stories", 5.3, 0.00859, 0.5),
    Dataset("Pile-CC", 49.8, 0.09446, 0.5, "Pile-CC"),
    Dataset("CC-2021-04", 82.6, 0.15652, 0.5),
    Dataset("CC-2020-50", 68.7, 0.13017, 0.5),
)
DATASETS = {dataset.name: dataset for dataset in CORPUS}
