"""Sessions in a SQLite file."""
