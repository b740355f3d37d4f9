"""The sessions that a gateway has loaded, what clients can do to them, and limits."""
