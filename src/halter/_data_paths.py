"""Where Halter keeps its settings and its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DataPaths", "find_paths"]


class DataPaths(NamedTuple):
    """The places of one user."""

    config: Path  # the file with the settings
    data: Path  # the folder with sessions, keys and notes


def find_paths(env: Mapping[str, str] = os.environ) -> DataPaths:
    """The folder that `HALTER_HOME` names, if it is set; else where this system keeps such files."""
    home = env.get("HALTER_HOME")
    if home:
        root = Path(home).expanduser().absolute()
        return DataPaths(root / "config.toml", root)
    import platformdirs  # slow to import, and often not needed

    dirs = platformdirs.PlatformDirs("halter", appauthor=False)
    return DataPaths(Path(dirs.user_config_dir) / "config.toml", Path(dirs.user_data_dir))
