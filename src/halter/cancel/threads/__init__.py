"""Blocking functions on daemon threads, and unblocking what they wait for."""
