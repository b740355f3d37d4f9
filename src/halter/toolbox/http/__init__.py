"""HTTP requests of tools, and the addresses that they may go to."""
