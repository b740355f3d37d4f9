"""Patches: parsed, and applied to several files at once.

This is our own code because libraries and `patch` want exact diffs. Models miscount lines, drop blanks and change
indentation, and need to be told which lines are nearest to those that they meant.
"""
