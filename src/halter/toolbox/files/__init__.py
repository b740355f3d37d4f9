"""Files of a workspace or of another machine: read, write, patch, search."""
