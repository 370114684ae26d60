"""Texts of a batch: their characters, words and hashes, and the compiled loops over them."""
