"""The nine tasks: rows, published formats, prompts, few-shot examples."""
