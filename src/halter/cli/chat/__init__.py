"""The terminal chat: a line that is alive while the agent works.

`program` starts and ends it; `host` has the session, on a loop of its own; `view` makes of the session's events what is
to be seen; `face` draws it with prompt_toolkit, below what has been said; `keys`, `commands` and `actions` are what a
person can do; `lines` is the same without a terminal.
"""
