"""The environment of the processes that tools start: ours, without variables that look like secrets.

A model can print the environment of every process it starts, so keys and passwords are removed unless they are named.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from halter._own_keys import read_key
from halter._secrets import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def without_secrets(pass_env: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment (default: ours) for a child, without secrets but those named in *pass_env*."""
    named = frozenset(pass_env)
    given = os.environ if environment is None else environment
    kept = {name: value for name, value in given.items() if name in named or not is_secret(name, value)}
    if environment is None:  # keys that the program has taken out of its environment
        kept |= {name: value for name in named - kept.keys() if (value := read_key(name))}
    return kept
