"""Sessions in NATS JetStream: the store for many machines."""
