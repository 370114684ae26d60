"""Deduplicate: MinHash LSH across all sources, verified by exact Jaccard similarity (paper.md 4.3)."""
