"""The terminal chat, with an input line that stays usable while a turn runs.

`start` opens and ends it; `session_host` serves the session on a loop of its own; `transcript` turns events into text;
`chat_ui` draws it with prompt_toolkit; `key_bindings`, `slash_commands` and `actions` are what the user can do;
`line_mode` is the same without a terminal.
"""
