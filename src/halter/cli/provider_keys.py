"""Keys of model providers that `halter login` has stored, in a file that only its owner may read.

A variable in the environment comes first. Commands of the model cannot read the file: the sandbox hides its folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from halter._data_paths import find_paths
from halter._own_keys import use_stored

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["keys_path", "load_provider_keys", "read_provider_keys", "store_provider_key"]

_PRIVATE: Final = 0o600
_FOLDER: Final = 0o700


def keys_path() -> Path:
    """The file."""
    return find_paths().data / "provider-keys.json"


def load_provider_keys() -> None:
    """Use the stored keys where the environment has none. A file that cannot be read counts as none."""
    try:
        use_stored(read_provider_keys())
    except (OSError, msgspec.MsgspecError):
        return


def read_provider_keys() -> dict[str, str]:
    """The stored keys, by the names of their variables. Raises `OSError` or `msgspec.MsgspecError`."""
    path = keys_path()
    return msgspec.json.decode(path.read_bytes(), type=dict[str, str]) if path.exists() else {}


def store_provider_key(variable: str, key: str) -> Path:
    """Store a key; what is stored for other providers stays. Returns the file. Raises as reading does."""
    from halter.toolbox.files.atomic import write_whole
    from halter.toolbox.files.workspace import Workspace

    path = keys_path()
    keys = read_provider_keys() | {variable: key}
    path.parent.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
    with Workspace(path.parent).find(path.name) as place:
        write_whole(place, msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n", _PRIVATE)
    path.chmod(_PRIVATE)  # it may have been there before, with another mode
    return path
