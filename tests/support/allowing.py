"""A policy for tests whose subject is not approval."""

from __future__ import annotations


def allow(_request: object) -> bool:
    """Allow every call."""
    return True
