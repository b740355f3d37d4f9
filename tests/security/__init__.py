"""Attacks on what protects the user from the agent."""
