"""The paper's studies beyond the nine tasks: HANS, hidden operators, bias."""
