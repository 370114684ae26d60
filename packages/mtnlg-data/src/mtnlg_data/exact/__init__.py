"""Exact: one copy of equal documents, of equal lines, and of passages that recur; none unless asked for."""
