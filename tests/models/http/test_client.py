"""Connections: reused when an answer ended well, ended at once when it did not, and never in each other's way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from random import Random
from typing import TYPE_CHECKING

import pytest
import trustme

from halter.models import (
    ConnectionFailed,
    Image,
    ModelError,
    ModelEvent,
    ModelRequest,
    OpenAIModel,
    StreamBroken,
    UserMessage,
    aclose_clients,
    preload,
)
from halter.testing import (
    FakeProvider,
    SeenRequest,
    answer,
    drop,
    hang_before_first_byte,
    hang_mid_stream,
    raw,
    slow_stream,
    status,
)
from tests.support.ports import held_ports
from tests.support.wires import HELLO, PNG, WIRES, ask, collect, first_text, model_for, run, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT = 5.0
"""How soon the server must see an end. Usually under a millisecond; the rest is for a machine that is busy."""


async def cancelled(task: asyncio.Task[object]) -> float:
    """Cancel a task, wait for it, and give the time of the cancel."""
    at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - at < PROMPT
    return at


@contextlib.contextmanager
def listener(backlog: int = 5) -> Iterator[socket.socket]:
    """A socket that listens and does nothing else."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(backlog)
        yield listening


@pytest.mark.parametrize("wire", WIRES)
def test_a_connection_is_used_again_after_an_answer(wire: str) -> None:
    """Answers that were read to their end, errors included, leave their connection to the next request."""

    async def scenario() -> None:
        async with FakeProvider(answer("one"), status(429), answer("two")) as provider:
            model = model_for(wire, provider)
            await collect(model)
            with pytest.raises(ModelError):
                await collect(model)
            await collect(model)
            assert [request.connection for request in provider.requests] == [1, 1, 1]

    run(scenario())


def test_a_server_that_does_not_end_its_body_loses_the_connection_not_our_time() -> None:
    """After [DONE] a body that stays open holds the answer up for a moment only, and its connection is closed."""

    async def scenario() -> None:
        done = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        async with FakeProvider(raw(done, b": more\n\n", interval=60.0)) as provider:
            events = await collect(model_for("openai", provider))
            assert text_of(events) == "x"
            await provider.await_close(1)

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_cancelled_before_the_first_byte(wire: str) -> None:
    """The server sees the end of a request that it has not begun to answer."""

    async def scenario() -> None:
        async with FakeProvider(hang_before_first_byte()) as provider:
            task = asyncio.create_task(collect(model_for(wire, provider)))
            await provider.await_request(1)
            at = await cancelled(task)
            assert await provider.await_close(1) - at < PROMPT
            assert len(provider.connections) == len(provider.requests) == len(provider.closes) == 1
            assert provider.requests[0].closed is not None

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_cancelled_in_the_middle_of_the_stream(wire: str, pieces: int) -> None:
    """The server sees the end of a stream that hangs, after the headers, after one piece and after some."""

    async def scenario() -> None:
        async with FakeProvider(hang_mid_stream(after=pieces)) as provider:
            task = asyncio.create_task(collect(model_for(wire, provider)))
            await provider.await_request(1)
            await provider.await_pieces(pieces)
            at = await cancelled(task)
            assert await provider.await_close(1) - at < PROMPT
            assert len(provider.connections) == len(provider.requests) == 1

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_closed_between_two_pieces(wire: str) -> None:
    """Closing the generator while its reader holds an event ends the connection before control is back."""

    async def scenario() -> None:
        async with FakeProvider(slow_stream(0.001)) as provider:
            stream = model_for(wire, provider).stream(HELLO)
            async for event in stream:
                if text_of([event]):
                    break
            at = time.monotonic()
            await stream.aclose()
            assert await provider.await_close(1) - at < PROMPT
            assert len(provider.requests) == 1

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fresh", [True, False])
def test_cancelled_at_every_turn_of_the_loop(wire: str, fresh: bool) -> None:
    """A request that is cancelled after any number of the loop's turns leaves nothing open and nothing half done.

    Each is on its own either cancelled or whole; no second request is made for it; and when the idle connections are
    closed, the server has seen the end of every connection there ever was.
    """
    chunks = [f"{number} " for number in range(20)]

    async def scenario() -> None:
        async with FakeProvider(default=answer(chunks=chunks)) as provider:
            model = model_for(wire, provider)
            await collect(model)
            whole = 0
            for turns in range(60):
                if fresh:
                    await aclose_clients()
                task = asyncio.create_task(collect(model))
                for _ in range(turns):
                    await asyncio.sleep(0)
                    # Real bytes travel in between, so that the turns reach further than the connect.
                    await asyncio.sleep(0.0002 if turns % 3 == 0 else 0)
                task.cancel()
                try:
                    assert text_of(await task) == "".join(chunks)
                    whole += 1
                except asyncio.CancelledError:
                    pass
            assert text_of(await collect(model)) == "".join(chunks)
            await aclose_clients()
            await provider.await_close(len(provider.connections))
            assert 0 < whole < 60
            assert len(provider.requests) <= 62

    run(scenario())


def test_cancelled_while_connecting() -> None:
    """A connect that gets no answer, because the listener's queue is full, ends with its task."""

    async def scenario() -> None:
        with listener(backlog=0) as listening, contextlib.ExitStack() as others:
            for _ in range(3):  # fill the queue: later connects wait
                other = others.enter_context(socket.socket())
                other.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    other.connect(listening.getsockname())
            model = OpenAIModel("m", base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", api_key="k")
            await asyncio.to_thread(preload)
            task: asyncio.Task[object] = asyncio.create_task(collect(model))
            for _ in range(20):
                await asyncio.sleep(0)
            await cancelled(task)

    run(scenario())


def test_cancelled_in_the_tls_handshake() -> None:
    """A server that accepts and never answers the TLS greeting sees the connection end."""

    async def scenario() -> None:
        with listener() as listening:
            listening.settimeout(10)
            model = OpenAIModel("m", base_url=f"https://127.0.0.1:{listening.getsockname()[1]}", api_key="k")
            task: asyncio.Task[object] = asyncio.create_task(collect(model))
            peer, _ = await asyncio.to_thread(listening.accept)
            with peer:
                peer.settimeout(10)
                assert await asyncio.to_thread(peer.recv, 65536)
                await cancelled(task)
                assert await asyncio.to_thread(peer.recv, 65536) == b""

    run(scenario())


def test_cancelled_while_sending_to_a_server_that_does_not_read() -> None:
    """What was not sent yet is dropped: the server sees the end without having read the rest."""

    async def scenario() -> None:
        with listener() as listening:
            listening.settimeout(10)
            model = OpenAIModel("m", base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", api_key="k")
            request = ModelRequest([UserMessage.of(Image(PNG + bytes(20_000_000)))])
            task: asyncio.Task[object] = asyncio.create_task(collect(model, request))
            peer, _ = await asyncio.to_thread(listening.accept)
            with peer:
                peer.settimeout(10)
                assert await asyncio.to_thread(peer.recv, 1)
                await cancelled(task)
                size = 1
                with contextlib.suppress(ConnectionResetError):
                    while data := await asyncio.to_thread(peer.recv, 1 << 20):
                        size += len(data)
                assert size < 20_000_000

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_a_hundred_requests_on_one_pool_and_some_are_stopped(wire: str) -> None:
    """Of 100 requests at once, those that are not stopped are whole to the byte, and exactly the others are closed."""
    rng = Random(7)
    texts = ["".join(rng.choice("añ🐎 \n") for _ in range(rng.randint(50, 400))) for _ in range(100)]
    doomed = set(rng.sample(range(100), 40))

    def scripted(request: SeenRequest) -> object:
        number = int(first_text(request))
        if number in doomed:
            return slow_stream(0.002) if number % 2 else hang_before_first_byte()
        return answer(texts[number], interval=0.001)

    async def scenario() -> None:
        async with FakeProvider(default=scripted) as provider:  # type: ignore[arg-type]
            model = model_for(wire, provider)
            requests = [ModelRequest([UserMessage.of(str(number))]) for number in range(100)]
            tasks = [asyncio.create_task(collect(model, request)) for request in requests]
            await provider.await_request(100)
            for number in rng.sample(sorted(doomed), len(doomed)):
                tasks[number].cancel()
                await asyncio.sleep(rng.choice([0, 0.001]))
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for number, result in enumerate(results):
                if number in doomed:
                    assert isinstance(result, asyncio.CancelledError)
                else:
                    assert not isinstance(result, BaseException)
                    assert text_of(result) == texts[number]
            await provider.await_close(len(doomed))
            assert len(provider.requests) == 100
            cut = [request for request in provider.requests if request.closed is not None]
            assert len(cut) == len(doomed)

    run(scenario())


def test_a_stop_leaves_no_connection_that_a_later_request_could_get() -> None:
    """The connection of a stopped stream is not in the pool: the next request opens its own and is answered."""

    async def scenario() -> None:
        async with FakeProvider(hang_mid_stream(), answer("fresh")) as provider:
            model = model_for("openai", provider)
            task: asyncio.Task[object] = asyncio.create_task(collect(model))
            await provider.await_pieces(1)
            await cancelled(task)
            assert text_of(await collect(model)) == "fresh"
            assert [request.connection for request in provider.requests] == [1, 2]

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_a_dropped_stream_is_broken(wire: str) -> None:
    """A connection that is lost in the middle raises what can be tried again, and what came before it was seen."""

    async def scenario() -> None:
        async with FakeProvider(drop(after=2)) as provider:
            seen: list[ModelEvent] = []
            with pytest.raises(StreamBroken) as caught:
                await collect(model_for(wire, provider), into=seen)
            assert caught.value.retryable
            assert len(text_of(seen)) == 24

    run(scenario())


def test_nobody_listens() -> None:
    """A refused connection says so, can be tried again, and keeps the original error."""
    with held_ports() as (port,), pytest.raises(ConnectionFailed) as caught:
        ask(OpenAIModel("m", base_url=f"http://127.0.0.1:{port}", api_key="k"))
    assert caught.value.retryable
    assert caught.value.__cause__ is not None


def test_a_name_that_does_not_exist() -> None:
    """A host that cannot be found is a failed connection."""
    with pytest.raises(ConnectionFailed):
        ask(OpenAIModel("m", base_url="http://no-such-host.invalid", api_key="k"))


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that hangs holds up neither the stop nor the end of the loop: no pool that is joined has its thread."""
    asked, released = threading.Event(), threading.Event()

    def deaf(*_: object, **__: object) -> list[object]:
        asked.set()
        released.wait(20)
        return []

    async def scenario() -> None:
        task: asyncio.Task[object] = asyncio.create_task(collect(OpenAIModel("m", base_url="http://slow.example")))
        assert await asyncio.to_thread(asked.wait, 10)
        await cancelled(task)

    preload()
    monkeypatch.setattr(socket, "getaddrinfo", deaf)
    started = time.monotonic()
    run(scenario())
    assert time.monotonic() - started < 5
    released.set()


def test_an_address_that_is_none() -> None:
    """An address that no request can be made to is an error that trying again does not cure."""
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url="nonsense", api_key="k"))
    assert not caught.value.retryable


def test_a_server_that_hangs_up_without_an_answer() -> None:
    """A connection that ends before the headers is a failed connection."""

    async def scenario() -> None:
        with listener() as listening:
            model = OpenAIModel("m", base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", api_key="k")
            task = asyncio.create_task(collect(model))
            peer, _ = await asyncio.to_thread(listening.accept)
            await asyncio.to_thread(peer.recv, 65536)
            peer.close()
            with pytest.raises(ConnectionFailed):
                await task

    run(scenario())


def test_tls_with_an_authority_of_ones_own() -> None:
    """A certificate is checked: not trusted by default, trusted with the right context, or not looked at if told so."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)

    async def scenario() -> None:
        async with FakeProvider(default=answer("secure"), tls=server) as provider:
            with pytest.raises(ConnectionFailed) as caught:
                await collect(model_for("openai", provider))
            assert not caught.value.retryable
            assert text_of(await collect(model_for("openai", provider, ssl=client))) == "secure"
            assert text_of(await collect(model_for("openai", provider, ssl=False))) == "secure"
            provider.script(hang_mid_stream())
            count = len(provider.requests)
            task: asyncio.Task[object] = asyncio.create_task(collect(model_for("openai", provider, ssl=client)))
            await provider.await_pieces(1, count + 1)
            ended = len(provider.closes)
            at = await cancelled(task)
            assert await provider.await_close(ended + 1) - at < PROMPT

    run(scenario())


def test_a_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through the proxy that the environment names."""
    with FakeProvider(answer("by proxy")) as proxy:
        for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy.url)
        model = OpenAIModel("m", base_url="http://provider.example/v1", api_key="k")
        assert text_of(ask(model)) == "by proxy"
        assert proxy.requests[0].path == "http://provider.example/v1/chat/completions"


def test_this_machine_is_not_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment, which could not find it anyway, does not get between us and a local server."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with FakeProvider(answer("direct")) as provider:
        assert text_of(ask(model_for("openai", provider))) == "direct"


def test_a_proxy_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that cannot be used is an error that says so, not a silent way around it."""
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ModelError, match=r"socks5 proxy for provider\.example"):
        ask(OpenAIModel("m", base_url="https://provider.example", api_key="k"))


def test_a_large_body_arrives() -> None:
    """A request with a large picture is received whole."""
    with FakeProvider() as provider:
        picture = Image(PNG + bytes(3_000_000 - len(PNG)))
        ask(model_for("openai", provider), ModelRequest([UserMessage.of(picture)]))
        url = provider.requests[0].body["messages"][0]["content"][0]["image_url"]["url"]
        assert len(url) == len("data:image/png;base64,") + 4_000_000


def test_headers_of_ones_own() -> None:
    """Custom headers are sent, and one with the name of ours replaces it."""
    with FakeProvider() as provider:
        ask(model_for("openai", provider, headers={"X-Team": "blue", "Authorization": "Custom abc"}))
        headers = provider.requests[0].headers
        assert headers["x-team"] == "blue"
        assert headers["authorization"] == "Custom abc"


def test_clients_can_be_closed_and_used_again() -> None:
    """`aclose_clients` ends idle connections as the server sees it; the next request opens a new one."""

    async def scenario() -> None:
        async with FakeProvider() as provider:
            model = model_for("openai", provider)
            await collect(model)
            await aclose_clients()
            await provider.await_close(1)
            await aclose_clients()
            await collect(model)
            assert [request.connection for request in provider.requests] == [1, 2]

    run(scenario())


ENDINGS = {
    "run": "asyncio.run(ask())",
    "closed-without-ceremony": "loop = asyncio.new_event_loop(); loop.run_until_complete(ask()); loop.close()",
    "never-closed": "loop = asyncio.new_event_loop(); loop.run_until_complete(ask())",
    "on-a-daemon-thread": (
        "loop = asyncio.new_event_loop(); threading.Thread(target=loop.run_forever, daemon=True).start(); "
        "asyncio.run_coroutine_threadsafe(ask(), loop).result()"
    ),
    "one-after-another": (
        "loop = asyncio.new_event_loop(); loop.run_until_complete(ask()); loop.close(); asyncio.run(ask())"
    ),
    "mid-stream": "asyncio.run(begin())",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_said_about_unclosed_connections(ending: str) -> None:
    """However the loop ends, no warning about an unclosed session, connector, transport or socket is printed."""
    program = f"""
        import asyncio, sys, threading
        from halter.models import ModelRequest, OpenAIModel, UserMessage
        model = OpenAIModel("m", base_url=sys.argv[1], api_key="k")
        kept = []
        async def ask():
            async for event in model.stream(ModelRequest([UserMessage.of("hi")])):
                pass
        async def begin():
            kept.append(model.stream(ModelRequest([UserMessage.of("hi")])))
            await anext(kept[0])
        {ENDINGS[ending]}
    """
    with FakeProvider() as provider:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "default", "-c", textwrap.dedent(program), provider.openai_url],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert len(provider.requests) >= 1
    said = [line for line in done.stderr.splitlines() if "nclosed" in line or "Error" in line]
    if ending == "never-closed":
        said = [line for line in said if "unclosed event loop" not in line and "AF_UNIX" not in line]
        said = [line for line in said if "family=1" not in line]
    assert not said
    assert done.returncode == 0


def test_the_first_request_imports_off_the_loop() -> None:
    """Importing the models does not import aiohttp, and the first request imports it without holding the loop up."""
    program = """
        import asyncio, sys, time
        import halter.models
        from halter.models import ModelRequest, OpenAIModel, UserMessage
        assert "aiohttp" not in sys.modules
        threads = {}
        class Watch:
            def find_spec(self, name, path=None, target=None):
                import threading
                threads.setdefault(name, threading.current_thread())
        sys.meta_path.insert(0, Watch())
        async def main():
            async for event in OpenAIModel("m", base_url=sys.argv[1]).stream(ModelRequest([UserMessage.of("hi")])):
                pass
        asyncio.run(main())
        import threading
        assert "aiohttp" in sys.modules
        assert threads["aiohttp"] is not threading.main_thread()
        print("heavy on the loop:", [n for n, t in threads.items() if t is threading.main_thread() and "aiohttp" in n])
    """
    with FakeProvider() as provider:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), provider.openai_url],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.stdout.strip() == "heavy on the loop: []", done.stderr
