"""What the chat shows: the conversation in the scrollback, and the live area below it."""
