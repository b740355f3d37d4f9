"""The profile for macOS, as text: it has not run on a Mac."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from halter.toolbox.sandbox import seatbelt
from halter.toolbox.sandbox.policy import Mode, Policy, policy_for


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key, and a workspace with a repository."""
    for name in ("home/.ssh", "work/.git/hooks", "temporary"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/.git/config").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def policy(folders: Path, mode: Mode = "workspace", *, network: bool = False) -> Policy:
    return policy_for(mode, folders / "work", folders / "temporary", network=network)


def rules(text: str) -> list[str]:
    """The rules of a profile, each on one line, in their order. Each is complete: its parentheses match."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        assert depth >= 0
        if depth == 0 and character == ")":
            found.append(" ".join(text[start : at + 1].split()))
            start = at + 1
    assert depth == 0
    assert not text[start:].strip()
    return found


def test_what_is_not_allowed_is_denied(folders: Path) -> None:
    """The workspace and temporary files are writable; hooks, the repository's place and secrets are taken out again."""
    found = rules(seatbelt.profile(policy(folders)))
    assert found[:2] == ["(version 1)", "(deny default)"]
    [allowed] = [each for each in found if each.startswith("(allow file-write* (subpath")]
    assert f'(subpath "{folders}/work")' in allowed
    assert f'(subpath "{folders}/temporary")' in allowed
    later = found[found.index(allowed) + 1 :]
    assert f'(subpath "{folders}/work/.git/hooks")' in next(each for each in later if "deny file-write* " in each)
    assert f'(literal "{folders}/work/.git")' in next(each for each in later if "deny file-write-unlink" in each)
    assert later[-1].startswith("(deny file-read* file-write* network-outbound")
    assert f'(subpath "{folders}/home/.ssh")' in later[-1]


def test_read_only_writes_temporary_files_alone(folders: Path) -> None:
    """In the mode "read-only", no rule allows to write the workspace."""
    text = seatbelt.profile(policy(folders, "read-only"))
    assert f'"{folders}/work"' not in text
    assert f'(subpath "{folders}/temporary")' in text


def test_the_network_is_allowed_only_if_the_policy_has_it(folders: Path) -> None:
    """Without it no rule allows any part of the network, loopback included."""
    without = rules(seatbelt.profile(policy(folders)))
    assert not [each for each in without if each.startswith(("(allow network", "(allow system-socket"))]
    assert "(allow network*)" in rules(seatbelt.profile(policy(folders, network=True)))
    some = rules(seatbelt.profile(policy(folders, network=True), [9000]))
    assert '(allow network-outbound (remote tcp "localhost:9000"))' in some
    assert "(allow network*)" not in some


def test_a_rule_without_paths_is_left_out(folders: Path) -> None:
    """`(deny file-write*)` would be for every file."""
    empty = dataclasses.replace(policy(folders), writable=(), read_only=(), pinned=(), hidden=(), sockets=())
    assert rules(seatbelt.profile(empty))[-1].startswith("(allow file-write* (literal")


def test_a_path_cannot_add_a_rule(folders: Path) -> None:
    """Quotes and backslashes in a name stay within it."""
    odd = Path('/w") (allow network*) (subpath "\\')
    text = seatbelt.profile(dataclasses.replace(policy(folders), writable=(odd,)))
    assert '(subpath "/w\\") (allow network*) (subpath \\"\\\\")' in text


def test_the_command(folders: Path) -> None:
    """The profile is an argument, so that no file of it can be changed."""
    made = seatbelt.wrap(policy(folders), ["echo", "x"])
    assert made == ["/usr/bin/sandbox-exec", "-p", seatbelt.profile(policy(folders)), "echo", "x"]


@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="this is about other systems")
def test_it_is_for_macs_only() -> None:
    """Elsewhere nothing of it is used."""
    assert not seatbelt.is_available()
