"""What must not happen to a Telegram bot: that something is lost, done twice, or told to whom it is not meant for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halter.cli.commands.config import config
from halter.cli.settings import SettingsError, TelegramSettings, load
from halter.events import MessageAccepted, MessageApplied, TurnFinished
from halter.stores import MemoryStore, SQLiteStore
from halter.testing import Gate
from tests.support.cli_program import Home
from tests.support.hooked_store import waiting_in
from tests.support.looped import looped
from tests.support.telegram_bot import SESSION, bot_of
from tests.support.telegram_server import TOKEN, USER, BotServer, Call

KILLS = 40 if os.environ.get("HALTER_EVERY_POINT") else 4


class _Bots:
    """Starts bots as processes of their own, one after the other."""

    def __init__(self, program: asyncio.subprocess.Process) -> None:
        self._program = program

    async def _read(self) -> int:
        assert self._program.stdout is not None
        return int(await self._program.stdout.readline())

    @contextlib.asynccontextmanager
    async def bot(self, by: signal.Signals = signal.SIGKILL) -> AsyncIterator[None]:
        """One of them, which is ended by a signal at the end of the block."""
        assert self._program.stdin is not None
        self._program.stdin.write(b"\n")
        pid = await self._read()
        try:
            yield
        finally:
            os.kill(pid, by)
            await self._read()


@contextlib.asynccontextmanager
async def _bots(store: Path, server: BotServer) -> AsyncIterator[_Bots]:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.telegram_program", str(store), server.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield _Bots(program)
    finally:
        program.kill()
        await program.wait()


@looped
async def test_a_bot_that_is_killed(tmp_path: Path) -> None:
    """Killed between receiving and acknowledging, at different moments: nothing is lost, and nothing done twice."""
    store = tmp_path / "sessions.db"
    async with BotServer() as server, _bots(store, server) as bots:
        async with bots.bot():
            await server.until(lambda: "getUpdates" in server.asked)
            await server.say("one")
            await server.until(lambda: server.delivered)  # it may have been accepted by now, or not
        server.acknowledges = False
        async with bots.bot():
            await server.say("two wait")
            await server.read("You said", "two wait")  # it was accepted, and not acknowledged
        server.acknowledges = True
        async with bots.bot(by=signal.SIGTERM):
            await server.read("The gateway stopped in the middle of this answer.")
            await server.acknowledged(await server.say("three"))
            await server.read("You said", "three")
    assert _applied_once(store) == ["one", "two wait", "three"]


@looped
async def test_a_bot_that_is_killed_anywhere(tmp_path: Path) -> None:
    """Killed again and again, each time when it has asked for so much of Telegram: all is applied once, in order."""
    store, chance, sent = tmp_path / "sessions.db", random.Random(7), list[str]()
    async with BotServer() as server, _bots(store, server) as bots:
        for _ in range(KILLS):
            end = len(server.asked) + chance.randint(1, 7)
            async with bots.bot():
                for _ in range(chance.randint(1, 3)):
                    sent.append(f"message {len(sent)}{chance.choice(['', '', ' wait'])}")
                    await server.say(sent[-1])
                await server.until(lambda: len(server.asked) >= end)
        async with bots.bot():
            sent.append("the last one")
            await server.acknowledged(await server.say(sent[-1]))
    assert _applied_once(store) == sent


def _applied_once(store: Path) -> list[str]:
    """The texts of all messages, in the order in which they were accepted; each was applied once, or waits for it."""
    with SQLiteStore(store) as left:
        events = [event.data for event in left.read(SESSION)]
        waiting = waiting_in(left, SESSION)
    accepted = [(data.id, data.message.text) for data in events if isinstance(data, MessageAccepted)]
    applied = [data.id for data in events if isinstance(data, MessageApplied)]
    assert Counter(applied + waiting) == Counter(message for message, _ in accepted)
    return [text for _, text in accepted]


@looped
async def test_a_stop_that_is_delivered_again() -> None:
    """A stop that was done before the gateway ended is not done to what runs in the next one."""
    store = MemoryStore()
    async with BotServer() as server:
        server.acknowledges = False
        async with bot_of(["One ", Gate()], server=server, store=store):
            await server.say("/stop")
            await server.read("Nothing was running.")
            await server.say("Count.")
            await server.read("One")
            await server.say("/queue Go on.")
            await server.read("Queued")
        gate = Gate()
        async with bot_of(["Two ", gate, "three."], server=server, store=store) as desk:
            await server.read("Two")
            server.acknowledges = True
            await server.acknowledged(await server.say("/help"))
            gate.open()
            await server.read("Two three.")
            reasons = [data.reason for data in desk.events() if isinstance(data, TurnFinished)]
            assert reasons == ["shutdown", ""]


class _Kept(logging.Handler):
    """Keeps all that is logged, as a file would."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.refused = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        if "the token was refused" in self.lines[-1]:
            self.refused.set()


@pytest.fixture
def logged() -> object:
    """All that anybody logs, in every detail."""
    root, ours, kept = logging.getLogger(), logging.getLogger("halter"), _Kept()
    before = root.level, ours.propagate
    root.addHandler(kept)
    root.setLevel(logging.DEBUG)
    ours.propagate = True
    yield kept
    root.removeHandler(kept)
    root.setLevel(before[0])
    ours.propagate = before[1]


@looped
async def _everything(logged: _Kept) -> None:
    """A bot that answers, fetches, fails to reach Telegram, is refused something, and at last all of it."""
    refused = {"sendMessage": 403, "editMessageText": 400, "getFile": 500}
    async with BotServer() as server:
        async with bot_of("Hello.", server=server):
            server.files["p"] = b"photo"
            await server.say("Hi.")
            await server.read("Hello.")
            seen: set[str] = set()

            def refuse(call: Call) -> tuple[int, dict[str, object]] | None:
                if call.method not in refused or call.method in seen:
                    return None
                seen.add(call.method)
                return refused[call.method], {}

            server.refuse = refuse
            await server.acknowledged(await server.say("/help"))
            await server.say(photo=[{"file_id": "gone", "file_unique_id": "p", "width": 1, "height": 1}])
            await server.read("could not be downloaded")
        server.refuse = lambda _: (401, {"description": "Unauthorized"})
        async with bot_of(server=server):
            assert await asyncio.to_thread(logged.refused.wait, 10)


def test_the_token_is_in_no_log(logged: _Kept) -> None:
    """Whatever happens, and however much is logged, by us or by the libraries: the token is not in it."""
    _everything(logged)
    assert any("getUpdates" in line for line in logged.lines)
    assert not [line for line in logged.lines if TOKEN in line or TOKEN.partition(":")[2] in line]


def _write(home: Path, text: str) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    return {"HALTER_HOME": str(home)}


def test_the_settings_of_a_bot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table [telegram] is read, and `halter config show` does not show the token."""
    env = _write(tmp_path, f'[telegram]\ntoken = "{TOKEN}"\nusers = [{USER}]\n')
    monkeypatch.setenv("HALTER_HOME", env["HALTER_HOME"])
    assert load().settings.telegram == TelegramSettings(TOKEN, (USER,))
    assert config("show") == 0
    shown = capsys.readouterr().out
    assert TOKEN not in shown
    [line] = [line for line in shown.splitlines() if line.startswith("telegram = ")]
    assert tomllib.loads(line)["telegram"]["users"] == [USER]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[telegram]\nusers = ["me"]\n', "line 2: telegram.users[0]: expected int, got str"),
        ("[telegram]\nuser = [1]\n", "line 2: unknown setting 'telegram.user'; did you mean 'users'?"),
    ],
)
def test_wrong_settings_of_a_bot(tmp_path: Path, text: str, told: str) -> None:
    """What is wrong is said, with the line."""
    with pytest.raises(SettingsError) as error:
        load(env=_write(tmp_path, text))
    assert told in str(error.value)


def test_a_bot_without_a_token(tmp_path: Path) -> None:
    """`halter serve` says where a token is expected, before anything is served."""
    _write(tmp_path, "[telegram]\nusers = [1]\n")
    ended = Home(tmp_path).run("serve", "--model", "openai:none", OPENAI_API_KEY="any", TELEGRAM_BOT_TOKEN="")
    assert ended.code == 1
    assert "line 1: the bot has no token: set `token` or TELEGRAM_BOT_TOKEN" in ended.err


def test_a_bot_beside_the_gateway(tmp_path: Path) -> None:
    """`halter serve` with a table [telegram] is a bot, with the token of the environment."""
    _beside(tmp_path)


@looped
async def _beside(home: Path) -> None:
    from halter.testing import FakeProvider, answer

    async with BotServer() as server:
        _write(home, f'[telegram]\ntoken = "old"\nusers = [{USER}]\nserver = "{server.url}"\n')
        with FakeProvider(answer("Hello.")) as provider:
            with Home(home, provider).start("serve", "--port", "0", TELEGRAM_BOT_TOKEN=TOKEN) as program:
                await server.say("Hi.")
                await server.read("Hello.")
                program.terminate()
                _, err = await asyncio.to_thread(program.communicate)
    assert program.returncode == 143, err
    assert TOKEN.encode() not in err
