"""Halter's agents as tools of an MCP server."""
