"""The wheel: what is in it, and that every Python here can use it. `scripts/release` installs it with all it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import outside_program

ROOT = Path(__file__).parent.parent
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
PYTHONS = [sys.executable, *(str(path) for path in sorted(PYENV.glob("3.1[1-9].*/bin/python")))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as pip builds it from this clone."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, *build, str(ROOT)], check=True, timeout=300)
    [found] = folder.glob("*.whl")
    return found


def test_the_wheel_has_what_it_needs_and_nothing_else(wheel: Path) -> None:
    """It has the hints for type checkers and the page's files, and no tests."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "halter/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"halter"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "halter").rglob("*") if path.is_file()}
    assert {name for name in sources if "__pycache__" not in name} <= set(names)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_core_of_the_wheel_needs_only_the_standard_library(wheel: Path, python: str, tmp_path: Path) -> None:
    """Without a single dependency the cancellation core works, with every Python from 3.11 on."""
    program = "import halter; one = halter.CancellationToken(); one.cancel(); print(one.reason, halter.__version__)"
    done = subprocess.run(
        [python, "-S", "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {program}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["interrupt", wheel.name.split("-")[1]]


def test_the_program_that_is_type_checked_also_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """What the type checkers see from outside is a program that works."""
    outside_program.main()
    assert capsys.readouterr().out == "Three. applied ['completed']\n"
