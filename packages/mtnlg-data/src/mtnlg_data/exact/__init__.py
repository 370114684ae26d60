"""Exact deduplication: keeps one copy of equal documents, equal lines and recurring passages; off by default."""
