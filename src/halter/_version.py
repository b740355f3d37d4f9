"""The version: read by the build, and by `halter --version` without the cost of `importlib.metadata`."""

__version__ = "0.1.0"
