"""Halter."""
