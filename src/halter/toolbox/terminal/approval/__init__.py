"""Which shell commands need approval."""
