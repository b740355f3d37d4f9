"""The sandbox, attacked from inside: as this user, as an ordinary one, and where the system allows no namespaces."""

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
from halter.toolbox.sandbox.sandbox import Sandbox
from tests.support.sandbox_attacks import ATTACKS, ATTACKS_ON_GIT, WORK

NOBODY = 65534
HERE = Path(__file__).parents[1] / "support" / "sandbox_attacks.py"
SYSTEM_PYTHON = "/usr/bin/python3"


@cache
def outcomes(who: str, means: str) -> dict[str, Any]:
    """What came of everything, for one user and one kind of sandbox."""
    home = Path("/var/tmp") / f"halter-attacks-{os.getpid()}-{who}-{means}"
    home.mkdir()
    interpreter, options = sys.executable, {}
    if who == "nobody":
        os.chown(home, NOBODY, NOBODY)
        interpreter, options = SYSTEM_PYTHON, {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    try:
        source = home.parent / f"{home.name}-source"
        shutil.copytree(Path(halter.__file__).parents[1], source / "src", ignore=shutil.ignore_patterns("*.pyc"))
        shutil.copy(HERE, source)
        done = subprocess.run(
            [interpreter, str(source / HERE.name), str(home), means],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(source / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd="/",
            **options,  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert (home / "witness").read_text() == "SECRET"
        assert not (home / "outside").exists()
        assert (home / ".bashrc").read_text() == ""
        assert not (home / ".ssh/authorized_keys").exists()
        return found
    finally:
        shutil.rmtree(home)
        shutil.rmtree(home.parent / f"{home.name}-source", ignore_errors=True)


# Without namespaces, a process that is started by root is root.
OPEN_TO_ROOT = {
    "become root",
    "open the parent's descriptors",
    "read the parent's environment",
    "read the parent's memory",
    "trace the parent",
}
USERS = ["me", pytest.param("nobody", marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can be nobody"))]


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("means", ["namespaces", "landlock"])
@pytest.mark.parametrize("attack", list(ATTACKS))
def test_an_attack_fails(who: str, means: str, attack: str) -> None:
    """It ends with an error, and nothing of what it was after is in its output."""
    if (means, who) == ("landlock", "me") and os.getuid() == 0 and attack in OPEN_TO_ROOT:
        pytest.xfail("a user namespace is what takes its privileges from root; docs/guides/sandbox.md says so")
    status, output = outcomes(who, means)["found"][attack]
    assert status != 0, output
    assert "SECRET" not in output


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("attack", list(ATTACKS_ON_GIT))
def test_an_attack_on_what_runs_later_fails(who: str, attack: str) -> None:
    """Hooks, Git's configuration and our settings stay as they are, where namespaces are allowed."""
    status, output = outcomes(who, "namespaces")["found"][attack]
    assert status != 0, output


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("means", ["namespaces", "landlock"])
@pytest.mark.parametrize("task", list(WORK))
def test_work_goes_on(who: str, means: str, task: str) -> None:
    """What every developer does all day works in the sandbox."""
    status, output = outcomes(who, means)["found"][task]
    assert status == 0, output


def test_it_says_when_there_are_no_namespaces() -> None:
    """The reason is there for the faces to show."""
    assert outcomes("me", "namespaces")["without_namespaces"] == ""
    assert outcomes("me", "landlock")["without_namespaces"]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    made = Sandbox(tmp_path)
    yield made
    made.close()


def run(sandbox: Sandbox, command: str) -> tuple[int, str]:
    process = sandbox.popen(
        ["sh", "-c", command],
        cwd=str(sandbox.policy.workspace),
        env={**os.environ, **sandbox.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = process.communicate(timeout=60)[0].decode()
    return process.returncode, output


def test_a_server_is_reached_by_its_own_sandbox_only(sandbox: Sandbox) -> None:
    """Loopback works between the processes of a sandbox, and is not that of the machine."""
    server = (
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); s.accept()"
    )
    process = sandbox.popen(
        [sys.executable, "-c", server], cwd=str(sandbox.policy.workspace), stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    connect = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
    assert subprocess.run([sys.executable, "-c", connect], capture_output=True, check=False).returncode != 0
    assert run(sandbox, f'{sys.executable} -c "{connect}"')[0] == 0
    assert process.wait(30) == 0
    process.stdout.close()


def test_read_only_writes_nothing_but_temporary_files(tmp_path: Path) -> None:
    """In the mode "read-only" the workspace cannot be written, and $TMPDIR can."""
    (tmp_path / ".git").mkdir()
    sandbox = Sandbox(tmp_path, "read-only")
    assert run(sandbox, "echo x > file")[0] != 0
    assert not list((tmp_path / ".git").iterdir())  # nor do we write there
    assert run(sandbox, "echo x > $TMPDIR/file && cat $TMPDIR/file") == (0, "x\n")
    temporary = sandbox.policy.temporary
    sandbox.close()
    assert not temporary.exists()


def test_a_failure_is_explained(sandbox: Sandbox) -> None:
    """The result says that it was the sandbox, and what would help."""
    _, output = run(sandbox, "echo x > /etc/x")
    assert "lets commands write" in sandbox.explain(output)
    _, output = run(sandbox, f"{sys.executable} -c \"import socket; socket.create_connection(('192.0.2.1', 80))\"")
    assert "no network" in sandbox.explain(output)
    assert sandbox.explain("all is well") == ""


def test_our_own_process_stays_free(sandbox: Sandbox) -> None:
    """Only the thread that starts a process is restricted."""
    assert run(sandbox, "true")[0] == 0
    with tempfile.TemporaryDirectory() as outside:
        (Path(outside) / "file").write_text("we may")


def test_a_worktree_can_be_committed_to(tmp_path: Path) -> None:
    """Its repository is somewhere else, and is writable but for the hooks."""
    repository, tree = tmp_path / "repository", tmp_path / "tree"
    commit = ["git", "-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "x"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    subprocess.run(commit, cwd=repository, check=True)
    subprocess.run(["git", "worktree", "add", "-q", str(tree)], cwd=repository, check=True)
    sandbox = Sandbox(tree)
    assert run(sandbox, " ".join(commit)) == (0, "")
    assert run(sandbox, f"echo evil > {repository}/.git/hooks/pre-commit")[0] != 0
    assert run(sandbox, f"echo evil > {repository}/file")[0] != 0
    sandbox.close()
