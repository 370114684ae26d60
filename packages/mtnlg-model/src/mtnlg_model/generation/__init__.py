"""Text generation with a key-value cache."""
