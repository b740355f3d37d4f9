"""Halter beside other agents: the same scenarios, the same fake provider, each system's own way to stop."""
