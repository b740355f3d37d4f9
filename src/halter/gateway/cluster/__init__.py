"""Gateways that share their sessions: requests between nodes, logs of other nodes, stops that everyone hears."""
