"""Protocols over standard input and output: `acp` for editors, `mcp` for other agents."""
