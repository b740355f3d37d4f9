"""HTTP to the providers: connections, server-sent events, and what the wires share."""
