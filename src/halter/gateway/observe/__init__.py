"""What an operator sees of a gateway: metrics, logs and traces."""
