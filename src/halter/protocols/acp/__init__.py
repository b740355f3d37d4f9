"""Halter as an agent of the Agent Client Protocol, which editors speak."""
