"""Tokens: documents to token stores in Megatron format, and their blend."""
