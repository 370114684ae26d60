"""Decontaminate: cut the evaluation tasks' n-grams out of the training documents (paper.md 4.4)."""
