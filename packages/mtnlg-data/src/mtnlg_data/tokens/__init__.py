"""Tokens: documents to token stores in Megatron's format, and the blend of the stores."""
