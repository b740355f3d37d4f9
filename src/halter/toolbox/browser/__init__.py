"""A browser for agents."""
