"""The nine tasks: published files, rows, prompts and few-shot examples."""
