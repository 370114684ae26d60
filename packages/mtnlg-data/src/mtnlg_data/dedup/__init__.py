"""Fuzzy deduplication across all sources: MinHash LSH, verified by exact Jaccard similarity (paper.md 4.3).

    minhash.py     documents, one shard per task → band keys and content hashes
    copies.py      content hashes → exact copies, of which one is kept
    clusters.py    band keys → links between documents that share one → clusters of candidates (union_find.py)
    candidates.py  what verification needs of the candidates: exact shingle sets, band keys
    verify.py      candidates of a group of clusters → pairs that are duplicates, and the document that each keeps
    copies.py      the documents to remove: near duplicates, and exact copies
    ledger.py      the ledger of removed documents, and the shards without them

Between steps rows are exchanged by key range: no task holds all documents' rows, or opens a number of files that grows
with them.
"""
