"""Searching the web and reading pages."""
