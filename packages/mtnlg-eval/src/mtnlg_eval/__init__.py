"""Scores an MT-NLG checkpoint on the paper's nine tasks through lm-eval, and draws the report of a run."""
