"""Running the tool calls of one step."""
