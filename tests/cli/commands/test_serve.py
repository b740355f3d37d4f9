"""`halter serve` and `halter keys`, as programs."""

from __future__ import annotations

import json
import signal
import socket
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from halter.testing import FakeProvider, answer
from tests.support.cli_program import Home, OnTerminal, end, read_until


def get(url: str, key: str, body: object = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        url, headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    )
    if body is not None:
        request.data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_first_start_shows_a_key_once(home: Home, provider: FakeProvider) -> None:
    """It stands in the page's address, behind the #, works, and is never shown or written again."""
    provider.script(answer("Hello."))
    with home.start("serve", "--port", "0") as program:
        assert program.stdout is not None
        said = read_until(program.stdout.fileno(), b"creates another.\n").decode()
        url, _, key = said.split()[3].partition("/#key=")
        assert get(f"{url}/v1/sessions", key, {"id": "s"})[0] == 201
        assert get(f"{url}/v1/sessions/s/messages", key, {"text": "Hi."})[0] == 202
        assert get(f"{url}/v1/sessions", "wrong")[0] == 401
        home.wait_until_sealed()
        ended = end(program, signal.SIGTERM)
        assert ended.code == 143
    lines = [json.loads(line) for line in ended.err.splitlines() if line.startswith("{")]
    finished = next(line for line in lines if line["event"] == "turn.finished")
    assert (finished["session"], finished["status"]) == ("s", "done")
    assert len(finished["turn"]) == 16
    assert key not in ended.err
    assert stat.S_IMODE((home.path / "keys.json").stat().st_mode) == 0o600
    with home.start("serve", "--port", "0") as program:
        assert program.stdout is not None
        again = read_until(program.stdout.fileno(), b"creates another.\n").decode()
        assert "key=" not in again
        assert key not in again
        assert get(f"{again.split()[3]}v1/sessions", key)[0] == 200
        end(program, signal.SIGTERM)
    assert key not in (home.path / "keys.json").read_text()


def test_a_key_of_the_environment(home: Home, provider: FakeProvider) -> None:
    """HALTER_KEY is the first key; none is made, and it is written and shown nowhere."""
    with home.start("serve", "--port", "0", HALTER_KEY="from-the-environment") as program:
        assert program.stdout is not None
        said = read_until(program.stdout.fileno(), b"creates another.\n").decode()
        assert "from-the-environment" not in said
        assert get(f"{said.split()[3]}v1/sessions", "from-the-environment")[0] == 200
        ended = end(program, signal.SIGTERM)
    assert "from-the-environment" not in ended.err
    assert not (home.path / "keys.json").exists()


def test_each_start_on_a_terminal_prints_an_address_that_opens_the_page(home: Home, provider: FakeProvider) -> None:
    """A second start showed none, and the first key was lost if nobody had noted it. Older keys stay valid."""
    shown = []
    for _ in range(2):
        with OnTerminal(home, "serve", "--port", "0") as terminal:
            terminal.read_until(b"creates another.")
            url, _, key = terminal.shown.decode().split("serves at ")[1].split()[0].partition("/#key=")
            shown.append(key)
            assert [get(f"{url}/v1/sessions", each)[0] for each in shown] == [200] * len(shown)
            terminal.program.terminate()
            assert terminal.end() == 143
    assert len(set(shown)) == 2


def test_a_port_that_is_taken(home: Home, provider: FakeProvider) -> None:
    """One line that names the cure; and no key was made, which nobody would have seen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = home.run("serve", "--port", port)
    assert ended.code == 1
    assert [port in line and "in use" in line and "--port" in line for line in ended.err.splitlines()] == [True]
    assert not (home.path / "keys.json").exists()


@pytest.mark.parametrize("port", ["80000", "http", "9" * 5000])
def test_a_port_that_is_none(home: Home, port: str) -> None:
    """It was a traceback; now the last line says what a port is."""
    ended = home.run("serve", f"--port={port}")
    assert ended.code == 2
    assert "from 0 to 65535" in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("key", ["", "short"])
def test_an_address_that_others_reach_needs_a_good_key(key: str, home: Home, provider: FakeProvider) -> None:
    """Without a key, or with one that is easily guessed, it does not begin."""
    ended = home.run("serve", "--port", "0", "--host", "0.0.0.0", HALTER_KEY=key)
    assert ended.code == 1
    assert "0.0.0.0" in ended.err
    assert "Traceback" not in ended.err
    public = home.run("serve", "--port", "0", "--public-name", "agents.example.org", HALTER_KEY=key)
    assert public.code == 1
    assert "agents.example.org" in public.err


def test_a_public_name_is_a_host_name(home: Home, provider: FakeProvider) -> None:
    """From the settings or a flag; what is not a host name is an error that shows one, and a good one is printed."""
    (home.path / "config.toml").write_text('public_name = "https://agents.example.org/"\n')
    key = "a-long-key-from-the-environment"
    wrong = home.run("serve", "--port", "0", HALTER_KEY=key)
    assert wrong.code == 1
    assert "such as agents.example.org, without https:// and path" in wrong.err
    with home.start("serve", "--port", "0", "--public-name", "Agents.example.org:8443", HALTER_KEY=key) as program:
        assert program.stdout is not None
        assert "https://Agents.example.org:8443/" in read_until(program.stdout.fileno(), b"creates another.\n").decode()
        end(program, signal.SIGTERM)


def create_key(home: Home, *args: str) -> str:
    """Create a key, as a person does at a terminal."""
    with OnTerminal(home, "keys", "create", *args) as terminal:
        assert terminal.end() == 0
        return next(word for word in terminal.shown.decode().split() if word.startswith("hk_"))


def test_keys_are_made_by_a_person_or_with_an_admin_key(home: Home) -> None:
    """A command of an agent made itself a key, and approved what it wanted to do."""
    refused = home.run("keys", "create", "x")
    assert (refused.code, refused.out) == (1, "")
    assert "terminal" in refused.err
    narrow, admin = create_key(home, "n", "--scope", "approve"), create_key(home, "a", "--scope", "admin")
    for key, code in ((narrow, 1), ("wrong", 1), (admin, 0)):
        assert home.run("keys", "create", "x", HALTER_KEY=key).code == code
    with OnTerminal(home, "keys", "create", "x", HALTER_TREE_0123456789abcdef="1") as terminal:
        assert terminal.end() == 1
        assert b"agent" in terminal.shown


def test_keys_are_made_listed_and_revoked(home: Home) -> None:
    """A key is shown once; the list has no secrets in it."""
    key = create_key(home, "phone", "--scope", "read")
    listed = home.run("keys", "list").out
    assert "phone" in listed
    assert "read" in listed
    assert key.split("_", 2)[2] not in listed
    assert home.run("keys", "revoke", "phone").code == 0
    assert home.run("keys", "list").out == ""
    again = home.run("keys", "revoke", "phone")
    assert (again.code, "no key 'phone'" in again.err) == (1, True)


def test_a_damaged_file_of_keys_is_told(home: Home, provider: FakeProvider) -> None:
    """And lets nobody in."""
    Path(home.path / "keys.json").write_text("{")
    for argv in (["serve", "--port", "0"], ["keys", "list"]):
        ended = home.run(*argv)
        assert ended.code == 1
        assert "damaged" in ended.err
        assert "Traceback" not in ended.err
