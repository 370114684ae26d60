"""The paper's studies beyond the nine tasks: HANS, hidden operators and social bias (paper.md 5.3 to 5.5)."""
