"""Every figure that Halter publishes is printed by a script in this folder: ``python bench/NAME.py``."""
