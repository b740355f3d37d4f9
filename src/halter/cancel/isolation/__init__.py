"""Python functions in worker processes that can be killed."""
