"""What every face shows, computed once: the state of a session, the timeline of a stop, stop phrases, safe text."""
