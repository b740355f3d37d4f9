"""The line that the user types: keys, completion, and earlier lines."""
