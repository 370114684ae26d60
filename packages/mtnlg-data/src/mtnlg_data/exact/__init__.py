"""Exact deduplication across all sources: keeps one copy of documents, lines and passages that recur; off by default.

    tokens.py   texts → hashes of documents, lines and windows of tokens
    repeats.py  hashes of all shards → what recurs in each
    cuts.py     what recurs → texts without it

All kinds are searched in the same texts, and what any of them finds is removed. No content is lost: of two equal things
the one in the earlier document stays, in the same order for every kind. A passage may be left in pieces, though: the
line that it begins with in one document, the rest of it in another.

Things are compared by 64-bit hashes. Among a billion different documents, the chance that two share a hash is 3 %.
"""
