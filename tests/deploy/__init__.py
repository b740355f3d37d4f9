"""The files with which Halter is deployed."""
