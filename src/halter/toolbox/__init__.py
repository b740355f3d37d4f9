"""The tools that ship with Halter."""
