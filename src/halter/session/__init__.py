"""One conversation: inbox, log, and at most one running turn."""
