"""Patches: parsed, and applied to several files at once.

This is our own code because libraries and `patch` need exact diffs. Models miscount lines, drop blanks and change
indentation, and need an error that shows the lines nearest to those that they meant.
"""
