"""The page's section on scores: the nine tasks beside the published figures, runs compared, trends, every result."""
