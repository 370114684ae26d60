"""Clean: repair Unicode and whitespace, drop what is too short, not English or a JavaScript stub (paper.md 4.4)."""
