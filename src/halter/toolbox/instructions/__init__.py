"""The system prompt of an agent that works in a folder: where it is, AGENTS.md, skills and notes."""
