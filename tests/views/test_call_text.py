"""How the arguments of a call are shortened to one line."""

from __future__ import annotations

import pytest

from halter.views.call_text import brief_arguments


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"path": "a.py", "line": 3}', "a.py, 3"),
        ('{"tasks": [{"agent": "a"}, {"agent": "b"}]}', "2 tasks"),
        ('{"tasks": [{"agent": "a"}], "wait": true}', "1 task, True"),
        ('{"names": ["a", "b"]}', "['a', 'b']"),
        ('{"names": []}', "[]"),
        ("no JSON", "no JSON"),
        ("", ""),
    ],
)
def test_arguments(arguments: str, text: str) -> None:
    """The values stand in one line; a list of objects, as the tasks of delegate are, is counted and not spelled out."""
    assert brief_arguments(arguments, 40) == text
