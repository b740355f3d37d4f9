"""The command line: what `halter` does when it is typed. Importing halter does not import it."""
