"""The OpenAI-compatible wire."""
