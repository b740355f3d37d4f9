"""HTTP: routes, handlers, schemas, authentication, event streams and WebSockets."""
