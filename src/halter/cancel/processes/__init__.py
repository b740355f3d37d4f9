"""Process trees: started, read, stopped and verified dead."""
