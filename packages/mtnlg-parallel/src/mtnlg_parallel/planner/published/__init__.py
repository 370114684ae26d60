"""Runs that others measured and published: read, predicted, compared."""
