"""How much `pip install .` brings: the number of distributions, and megabytes on the disk.

    python bench/size.py

Halter is built and installed into a fresh environment in a temporary directory, from the versions that pip chooses.
Counted is all that is in the environment's `site-packages` afterwards, Halter itself and the compiled bytecode that pip
writes included; pip is not, for it is run from outside.

Goals: fewer than 20 distributions, less than 30 MB.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import importlib.metadata
import subprocess
import tempfile
import venv
from pathlib import Path

from bench.measure import Goals, print_table

_MOST = 20
_MEGABYTES = 30.0
_MB = 1_000_000


def install(folder: Path) -> Path:
    """Install Halter into a new environment, and give its site-packages."""
    source = Path(__file__).resolve().parents[1]
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", str(source)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def size_of_distribution(found: importlib.metadata.Distribution) -> int:
    """Bytes of the files that it says are its own."""
    paths = (Path(str(found.locate_file(file))) for file in found.files or ())
    return sum(path.lstat().st_size for path in paths if path.exists())


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        packages = install(Path(folder) / "venv")
        found = list(importlib.metadata.distributions(path=[str(packages)]))
        total = size_of(packages) / _MB
        rows = [(each.metadata["Name"], each.version, size_of_distribution(each) / _MB) for each in found]
    rows.sort(key=lambda row: -row[2])
    print_table(
        f"What pip install brings, Python {sys.version.split()[0]}",
        ["", "version", "MB"],
        [[name, version, f"{size:.2f}"] for name, version, size in rows] + [["together", "", f"{total:.2f}"]],
    )
    goals = Goals()
    goals.check(f"{len(found)} distributions, fewer than {_MOST}", is_met=len(found) < _MOST)
    goals.check(f"{total:.1f} MB, less than {_MEGABYTES:g} MB", is_met=total < _MEGABYTES)
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
