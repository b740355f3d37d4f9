"""The default tools, attacked from inside: as this user, as an ordinary one, with namespaces and without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import halter
from tests.support.sandbox_attacks import ATTACKS, BY_CODE, IO_URING, NEED_NAMESPACES

NOBODY = 65534
HERE = Path(__file__).parents[1] / "support" / "sandbox_attacks.py"
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
LIBRARIES = [path for path in sys.path if path.endswith("site-packages")]
DOCUMENTED = (Path(__file__).parents[2] / "docs/security.md").read_text()
USERS = ["me", pytest.param("nobody", marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can be nobody"))]


def environment(source: Path) -> dict[str, str]:
    return {
        "PATH": f"/usr/bin:/bin:{os.environ['PATH']}",  # a python3 that is a script of a version manager is slow
        "PYTHONPATH": os.pathsep.join([str(source / "src"), *LIBRARIES]),
    }


def interpreter_of_nobody(source: Path) -> str:
    """An interpreter that an ordinary user may start, and for which our libraries were built."""
    check = f"import sys, halter.toolbox.defaults; assert sys.version_info[:2] == {sys.version_info[:2]}"
    for each in (sys.executable, "/usr/bin/python3"):
        try:
            done = subprocess.run(
                [each, "-c", check], env=environment(source), cwd="/", capture_output=True, check=False, **AS_NOBODY
            )
        except OSError:
            continue
        if done.returncode == 0:
            return each
    pytest.skip("the user nobody has no interpreter that can import our libraries")


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """The sources and the program, where an ordinary user can read them."""
    place = Path(tempfile.mkdtemp(prefix="halter-attacks-", dir="/var/tmp"))
    place.chmod(0o755)
    # Without bytecode: what is being written just now may be gone before it is copied.
    no_bytecode = shutil.ignore_patterns("*.pyc", "__pycache__")
    shutil.copytree(Path(halter.__file__).parents[1], place / "src", ignore=no_bytecode)
    shutil.copy(HERE, place)
    shutil.copy(IO_URING, place)
    yield place
    shutil.rmtree(place)


@cache
def outcomes(source: Path, who: str, means: str) -> dict[str, dict[str, tuple[int, str]]]:
    """What came of all attacks, for one user and one kind of sandbox."""
    home = source / f"home-{who}-{means}"
    home.mkdir()
    interpreter, options = sys.executable, {}
    if who == "nobody":
        os.chown(home, NOBODY, NOBODY)
        interpreter, options = interpreter_of_nobody(source), AS_NOBODY
    done = subprocess.run(
        [interpreter, str(source / HERE.name), str(home), means],
        env=environment(source),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd="/",
        **options,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, tuple[int, str]]] = json.loads(done.stdout)
    assert (home / "witness").read_text() == "SECRET"
    assert not (home / "outside").exists()
    assert (home / ".bashrc").read_text() == ""
    assert not (home / ".ssh/authorized_keys").exists()
    assert not (home / ".local/share/halter/keys.json").exists()
    return found


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("means", ["namespaces", "landlock"])
@pytest.mark.parametrize(
    ("tool", "attack"), [*(("terminal", each) for each in ATTACKS), *(("execute_code", each) for each in BY_CODE)]
)
def test_an_attack_fails(source: Path, who: str, means: str, tool: str, attack: str) -> None:
    """It ends with an error, and nothing of what it was after is in its output."""
    status, output = outcomes(source, who, means)[tool][attack]
    assert status != 0, output
    assert "SECRET" not in output


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("attack", list(NEED_NAMESPACES))
def test_an_attack_fails_with_namespaces(source: Path, who: str, attack: str) -> None:
    """What runs later outside, and what other programs would do for a command, is closed where namespaces are."""
    status, output = outcomes(source, who, "namespaces")["terminal"][attack]
    assert status != 0, output


@pytest.mark.parametrize("attack", [*ATTACKS, *NEED_NAMESPACES])
def test_an_attack_is_documented(attack: str) -> None:
    """The table in docs/security.md has a row for each attack, and says where it needs namespaces."""
    [row] = [line for line in DOCUMENTED.splitlines() if line.startswith(f"| {attack} |")]
    assert ("needs namespaces" in row) == (attack in NEED_NAMESPACES)
