"""Quality: a classifier trained on curated sources scores crawled documents; a Pareto draw keeps the good ones."""
