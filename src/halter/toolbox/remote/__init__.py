"""The same tools on another machine."""
