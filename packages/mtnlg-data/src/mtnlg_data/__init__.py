"""Raw web pages to clean, deduplicated, blended tokens: the data side of MT-NLG 530B."""
