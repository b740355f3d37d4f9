"""The sandbox: what works in it, what it explains, and how it ends. `test_attacks.py` attacks it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.toolbox.sandbox import sandbox as module
from halter.toolbox.sandbox.namespaces import NamespacesUnavailable
from halter.toolbox.sandbox.sandbox import Sandbox, SandboxClosed
from tests.support.ports import held_ports


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    made = Sandbox(tmp_path)
    yield made
    made.close()


def run(sandbox: Sandbox, command: str) -> tuple[int, str]:
    process = sandbox.popen(
        ["bash", "-c", command],
        cwd=str(sandbox.workspace),
        env={**os.environ, **sandbox.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = process.communicate(timeout=60)[0].decode()
    return process.returncode, output


def test_a_server_is_reached_by_its_own_sandbox_only(sandbox: Sandbox) -> None:
    """Loopback works between the processes of a sandbox, and is not that of the machine."""
    with held_ports() as (port,):  # of the machine, where so nobody listens on it
        server = (
            f"import socket; s = socket.socket(); s.bind(('127.0.0.1', {port})); s.listen(); "
            "print('ready', flush=True); s.accept()"
        )
        process = sandbox.popen(
            [sys.executable, "-c", server],
            cwd=str(sandbox.workspace),
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
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


@pytest.mark.parametrize(
    ("command", "said", "cure"),
    [
        ("echo x > /etc/x", "it lets commands write only", "--sandbox off"),
        ("echo x > .git/hooks/pre-commit", "keeps Git's hooks and configuration as they are", "--sandbox off"),
        ("exec 3<>/dev/tcp/192.0.2.1/80", "it has no network", "the argument network"),
        ("exec 3<>/dev/tcp/name.invalid/80", "it has no network", "--network"),
        ("exec 3<>/dev/tcp/127.0.0.1/9", "servers that this session has started", "the argument network"),
        ("kill -0 1", "keeps them away from other processes", "--sandbox off"),
    ],
)
def test_a_failure_is_explained(sandbox: Sandbox, command: str, said: str, cure: str) -> None:
    """The result says that the sandbox may be the cause, and what would allow it."""
    (sandbox.workspace / ".git").mkdir()
    status, output = run(sandbox, command)
    assert status != 0
    assert said in sandbox.explain(output), output
    assert cure in sandbox.explain(output)


def test_other_failures_are_not_explained(sandbox: Sandbox) -> None:
    """A failure that is not of the kind that a sandbox causes is left as it is."""
    assert sandbox.explain(run(sandbox, "cat missing")[1]) == ""


def test_without_namespaces_there_is_no_loopback(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the sandbox says why there are none, and a refused connection is explained by that."""

    def refuse(_: object) -> None:
        raise NamespacesUnavailable("as on a system that allows none")

    monkeypatch.setattr(module, "Namespaces", refuse)
    assert run(sandbox, "true")[0] == 0
    assert sandbox.without_namespaces == "as on a system that allows none"
    assert "no loopback on this system (as on" in sandbox.explain("Connection refused")


def test_a_closed_sandbox_starts_nothing(tmp_path: Path) -> None:
    """Whether it was used or not, after close() everything that would use it is an error that says so."""
    for uses in (0, 1):
        sandbox = Sandbox(tmp_path)
        for _ in range(uses):
            assert run(sandbox, "true")[0] == 0
        sandbox.close()
        sandbox.close()
        with pytest.raises(SandboxClosed, match="the sandbox is closed; make a new one"):
            sandbox.popen(["true"], cwd="/")
        with pytest.raises(SandboxClosed):
            sandbox.command(["true"])
        with pytest.raises(SandboxClosed):
            _ = sandbox.environment


def test_nothing_is_made_before_the_first_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that is not used leaves no folder, and does not touch the workspace."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    Sandbox(tmp_path).for_session().close()
    assert not list((tmp_path / "temporary").iterdir())
    assert not list((tmp_path / ".git").iterdir())


def test_sessions_have_loopbacks_of_their_own(sandbox: Sandbox) -> None:
    """A server of one session is not reached by another."""
    other = sandbox.for_session()
    namespaces = [run(each, "readlink /proc/self/ns/net")[1] for each in (sandbox, other, sandbox)]
    assert namespaces[0] == namespaces[2] != namespaces[1]
    assert sandbox.environment["TMPDIR"] != other.environment["TMPDIR"]
    other.close()


def test_a_command_for_libraries_is_restricted_too(sandbox: Sandbox) -> None:
    """What a library starts by that command reads and writes as all processes of the sandbox do."""
    script = "echo text > file && cat file; ! echo evil > ../outside"
    done = subprocess.run(
        sandbox.command(["sh", "-c", script]), cwd=sandbox.workspace, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"text\n"), done.stderr
    assert not (sandbox.workspace.parent / "outside").exists()


def test_terminals_work(sandbox: Sandbox) -> None:
    """Programs can make terminals of their own."""
    code = "import os, pty; a, b = pty.openpty(); os.write(b, b'hello'); print(os.read(a, 5), os.ttyname(b))"
    assert run(sandbox, f'{sys.executable} -c "{code}"') == (0, "b'hello' /dev/pts/0\n")


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


# What a command may leave as `.git` so that the next session could write the folder {home}.
_PLANTED = {
    "a link": "ln -s {home} .git",
    "a pointer": (
        "mkdir -p a/b && echo $PWD/.git > a/b/gitdir && echo {home} > a/b/commondir && echo gitdir: a/b > .git"
    ),
    "a pointer to a link": (
        "mkdir a && ln -s {home} a/home && mkdir -p worktrees/b && echo $PWD/.git > worktrees/b/gitdir && "
        "echo ../../a/home > worktrees/b/commondir && echo gitdir: worktrees/b > .git"
    ),
    "a linked worktrees": (
        "mkdir -p a b/c && ln -s {home} a/.git && ln -s $PWD/b a/worktrees && echo $PWD/.git > b/c/gitdir && "
        "echo ../../a/.git > b/c/commondir && echo gitdir: a/worktrees/c > .git"
    ),
    "the workspace itself": "echo $PWD/.git > gitdir && echo ../.. > commondir && echo gitdir: . > .git",
    "a pipe": "mkfifo .git",
    "a loop": "ln -s loop loop && echo gitdir: loop > .git",
    "a pipe that it points to": "mkdir a && mkfifo a/gitdir a/commondir && echo gitdir: a > .git",
}


@pytest.mark.parametrize("planted", _PLANTED.values(), ids=_PLANTED)
def test_no_git_folder_makes_more_writable(tmp_path: Path, planted: str) -> None:
    """A command could write a `.git` that made any folder of the user's writable for the next session."""
    home = tmp_path / "home"
    workspace = home / "worktrees" / "feature"  # where many keep them: each then looks like Git's own folder
    workspace.mkdir(parents=True)
    first = Sandbox(workspace)
    assert run(first, planted.format(home=home)) == (0, "")
    second = first.for_session()
    assert run(second, "echo fine > file") == (0, "")
    assert run(second, f"echo evil > {home}/evil")[0] != 0
    assert not (home / "evil").exists()
    for each in (first, second):
        each.close()


def test_a_folder_of_git_in_the_workspace_is_exchanged_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be pinned, a command exchanged `.git` for a link to the user's files and asked for the network.

    The rules with the network are made later, and were for what the link points to.
    """

    def refuse(_: object) -> None:
        raise NamespacesUnavailable("as on a system that allows none")

    monkeypatch.setattr(module, "Namespaces", refuse)
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    (workspace / ".git").mkdir(parents=True)
    sandbox = Sandbox(workspace)
    assert run(sandbox, f"mv .git away && ln -s {home} .git") == (0, "")
    assert run(sandbox.with_network(), f"echo evil > {home}/evil")[0] != 0
    assert not (home / "evil").exists()
    sandbox.close()


def test_the_pointer_of_a_worktree_stays_as_it_is(tmp_path: Path) -> None:
    """A command let `.git` point to a repository of its own, and the user's `git status` ran its programs."""
    repository, tree = tmp_path / "repository", tmp_path / "tree"
    commit = ["git", "-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "x"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    subprocess.run(commit, cwd=repository, check=True)
    subprocess.run(["git", "worktree", "add", "-q", str(tree)], cwd=repository, check=True)
    pointer = (tree / ".git").read_text()
    sandbox = Sandbox(tree)
    for command in ("echo gitdir: evil > .git", "echo gitdir: evil > a && mv -f a .git", "rm -f .git", "mv .git a"):
        assert run(sandbox, command)[0] != 0, command
    assert (tree / ".git").read_text() == pointer
    sandbox.close()


def test_hooks_that_cannot_be_made_leave_the_rest_protected(tmp_path: Path) -> None:
    """If `hooks` was a dangling link, Git's configuration could be written, too."""
    git = tmp_path / ".git"
    git.mkdir()
    (git / "config").write_text("")
    (git / "hooks").symlink_to("missing")
    sandbox = Sandbox(tmp_path)
    assert run(sandbox, "echo evil > .git/config")[0] != 0
    sandbox.close()
