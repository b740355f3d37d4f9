"""The key by which OpenAI finds the server that has a conversation in its cache."""

from __future__ import annotations

import hashlib

__all__ = ["prompt_cache_key"]


def prompt_cache_key(conversation: str) -> str:
    """The key of a conversation: a hash, because the id may be the name of a person, or longer than is allowed."""
    return hashlib.blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
