"""Checkpoints of a workspace: what a turn has changed can be shown and restored."""
