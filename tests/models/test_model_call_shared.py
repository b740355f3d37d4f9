"""Requests that share a client: a stop of one is nothing to the others."""

from __future__ import annotations

import asyncio
import io
import ssl
import threading
from random import Random
from typing import TYPE_CHECKING

import pytest
import trustme

from halter import CancellationToken, Cancelled
from halter.models import Answer, ModelCall, ModelRequest, TextDelta, UserMessage
from halter.testing import FakeProvider, ScriptedReply, SeenRequest, answer, hang_before_first_byte, slow_stream
from tests.support.model_calls import stop_soon
from tests.support.wires import HELLO, WIRES, first_text, model_for, run

if TYPE_CHECKING:
    from pathlib import Path


def test_the_next_request_on_the_same_client_is_its_own() -> None:
    """A stale worker raced the next turn on the same client. The next request finds nothing of the stopped one."""

    async def scenario() -> None:
        async with FakeProvider(slow_stream(0.001, text="old "), answer("new")) as provider:
            model, token = model_for("openai", provider), CancellationToken()
            shown = asyncio.Event()
            old = ModelCall(model, HELLO, token=token, emit=lambda e: shown.set() if isinstance(e, TextDelta) else None)
            task = asyncio.create_task(old.run())
            await shown.wait()
            stop_soon(token)
            new = asyncio.create_task(ModelCall(model, HELLO, token=CancellationToken()).run())
            with pytest.raises(Cancelled):
                await task
            kept = old.answer
            assert (await new).text == "new"
            assert old.answer == kept
            assert set(kept.text.split()) == {"old"}
            assert len(provider.requests) == 2

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_a_hundred_requests_on_one_client_and_some_are_stopped(wire: str) -> None:
    """Those that are not stopped are whole to the byte; exactly the others are closed, and none is made twice."""
    rng = Random(11)
    texts = ["".join(rng.choice("añ🐎 \n") for _ in range(rng.randint(50, 400))) for _ in range(100)]
    doomed = rng.sample(range(100), 40)

    def scripted(request: SeenRequest) -> ScriptedReply:
        number = int(first_text(request))
        if number in doomed:
            return slow_stream(0.002) if number % 2 else hang_before_first_byte()
        return answer(texts[number], interval=0.001)

    async def scenario() -> None:
        async with FakeProvider(default=scripted) as provider:
            model, turn = model_for(wire, provider), CancellationToken()
            tokens = [turn.child(str(number)) for number in range(100)]
            exchanges = [
                ModelCall(model, ModelRequest([UserMessage.of(str(number))]), token=token)
                for number, token in enumerate(tokens)
            ]
            tasks = [asyncio.create_task(exchange.run()) for exchange in exchanges]
            await provider.await_request(100)
            stopper = threading.Thread(target=lambda: [tokens[number].cancel() for number in doomed])
            stopper.start()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            stopper.join()
            for number, result in enumerate(results):
                if number in doomed:
                    assert isinstance(result, Cancelled)
                    assert exchanges[number].answer.text == "word " * (len(exchanges[number].answer.text) // 5)
                else:
                    assert isinstance(result, Answer)
                    assert result.text == texts[number]
            await provider.await_close(40)
            assert len(provider.requests) == 100
            assert sum(request.closed is not None for request in provider.requests) == 40

    run(scenario())


def test_a_stop_from_another_thread_never_writes_into_a_recycled_descriptor(tmp_path: Path) -> None:
    """Closing a TLS socket from another thread wrote TLS bytes into a SQLite file whose descriptor was recycled.

    The thread that stops opens files at once, which get the descriptors that the closes set free.
    """
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    files: list[io.FileIO] = []
    threads: list[threading.Thread] = []

    def stop_and_open(token: CancellationToken) -> None:
        token.cancel()
        for _ in range(5):
            file = io.FileIO(str(tmp_path / str(len(files))), "w+")
            file.write(b"SQLite format 3")
            files.append(file)

    async def scenario() -> None:
        async with FakeProvider(default=slow_stream(0.001), tls=server) as provider:
            model = model_for("openai", provider, ssl=client)
            for number in range(1, 16):
                token = CancellationToken()
                task = asyncio.create_task(ModelCall(model, HELLO, token=token).run())
                await provider.await_pieces(1, number)
                threads.append(threading.Thread(target=stop_and_open, args=(token,)))
                threads[-1].start()
                with pytest.raises(Cancelled):
                    await task
            await provider.await_close(15)

    run(scenario())
    for thread in threads:
        thread.join()  # control is back before the last of them has opened its files
    for file in files:
        file.seek(0)
        assert file.read() == b"SQLite format 3"
        file.close()
