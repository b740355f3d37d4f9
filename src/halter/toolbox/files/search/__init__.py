"""Searching files, by name or by content."""
