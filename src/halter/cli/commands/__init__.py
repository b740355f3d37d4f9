"""One module for each command of `halter`."""
