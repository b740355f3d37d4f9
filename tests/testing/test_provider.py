"""The fake provider: it does what its script says, and sees what a server sees."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from halter.models import ToolCall
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
    tool_calls,
)

CALLS = [ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}")]


def post(url: str, **body: Any) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        data: bytes = response.read()
    return data


def refused(url: str) -> tuple[int, Any, bytes]:
    """Post, expecting a refusal, and give its status, headers and body."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(url)
    with caught.value as error:
        return error.code, error.headers, error.read()


def open_socket(provider: FakeProvider, **body: Any) -> socket.socket:
    """Send a request by hand, so that the test owns the connection."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", provider.port), timeout=10)
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    return connection


def test_both_protocols_both_ways() -> None:
    """The same reply is written as chat completions and as messages, streamed and whole."""
    with FakeProvider(default=tool_calls(CALLS, text="so")) as provider:
        chat, messages = f"{provider.openai_url}/chat/completions", f"{provider.anthropic_url}/v1/messages"
        whole = json.loads(post(chat, model="m"))
        assert whole["choices"][0]["message"]["content"] == "so"
        assert [call["id"] for call in whole["choices"][0]["message"]["tool_calls"]] == ["a", "b"]
        whole = json.loads(post(messages, model="m"))
        assert [block["type"] for block in whole["content"]] == ["text", "tool_use", "tool_use"]
        assert post(chat, model="m", stream=True).endswith(b"data: [DONE]\n\n")
        assert b'"message_stop"' in post(messages, model="m", stream=True)
        assert [request.path for request in provider.requests] == ["/v1/chat/completions", "/v1/messages"] * 2
        provider.wait_for_finish(4)


def test_the_script_is_followed_and_then_the_default() -> None:
    """Replies are used in order, a function of the request among them, and the default after the last."""

    def echo(request: SeenRequest) -> Any:
        return answer(f"you said {request.body['say']}")

    with FakeProvider(answer("one"), default=answer("default")) as provider:
        provider.script(echo)
        url = f"{provider.openai_url}/chat/completions"
        texts = [json.loads(post(url, say="hi"))["choices"][0]["message"]["content"] for _ in range(3)]
        assert texts == ["one", "you said hi", "default"]


def test_failures() -> None:
    """A status comes with its headers and a body of the provider's kind; raw bytes come as they are."""
    with FakeProvider(status(429, "wait", retry_after=1.5), raw(b"any", b"thing")) as provider:
        url = f"{provider.openai_url}/chat/completions"
        code, headers, body = refused(url)
        assert (code, headers["retry-after"], json.loads(body)["error"]["message"]) == (429, "1.5", "wait")
        assert post(url) == b"anything"
        assert refused(f"{provider.url}/elsewhere")[0] == 404


@pytest.mark.parametrize("reply", [hang_before_first_byte(), hang_mid_stream(2), slow_stream(0.01)])
def test_it_sees_a_client_that_leaves(reply: Any) -> None:
    """Whatever the script is doing, the end of a connection is noticed at once, and recorded with its time."""
    with FakeProvider(reply) as provider:
        with open_socket(provider, stream=True):
            request = provider.wait_for_request(1)
            if reply.fault != "silent":
                provider.wait_for_pieces(2)
            assert provider.closes == []
            before = time.monotonic()
        assert before <= provider.wait_for_close(1) < before + 5
        assert (request.closed, request.finished) == (provider.closes[0], None)
        assert provider.connections[0].closed_by == "client"


def test_it_drops() -> None:
    """A dropped stream ends without its end, and is recorded as the server's doing."""
    with FakeProvider(drop(after=2)) as provider, open_socket(provider, stream=True) as client:
        data = b""
        while piece := client.recv(65536):
            data += piece
        assert data.count(b'"content": "') == 3  # the beginning's empty one, and two pieces
        assert not data.endswith(b"0\r\n\r\n")
        assert provider.connections[0].closed_by == "server"
        assert provider.closes == []


def test_pieces_are_cut_as_told() -> None:
    """Chunks that are given are the pieces that are sent."""
    with FakeProvider(answer(chunks=["a", "b", "c"])) as provider:
        data = post(f"{provider.openai_url}/chat/completions", stream=True)
        assert provider.requests[0].pieces == 3
        assert data.count(b'"content": ') == 4


def test_a_wait_that_fails_says_what_was_seen() -> None:
    """A test that waits in vain is told what did happen."""
    with FakeProvider() as provider:
        post(f"{provider.openai_url}/chat/completions")
        with pytest.raises(TimeoutError, match=r"no request 2 within .*saw 1 requests on 1 connections"):
            provider.wait_for_request(2, timeout=0.01)


def test_errors_of_the_script_are_visible() -> None:
    """A script that fails answers 500 to the client and raises in the test when the provider is left."""

    def broken(_request: SeenRequest) -> Any:
        message = "a slip in the script"
        raise LookupError(message)

    with pytest.raises(LookupError, match="a slip"), FakeProvider(broken) as provider:
        assert refused(f"{provider.openai_url}/chat/completions")[0] == 500


@pytest.mark.alone
def test_leaving_ends_everything() -> None:
    """After the block there is no thread, and clients that still hang are disconnected, without delay."""
    before = threading.active_count()
    with FakeProvider(default=hang_mid_stream()) as provider:
        clients = [open_socket(provider, stream=True) for _ in range(5)]
        provider.wait_for_request(5)
        at = time.monotonic()
    assert time.monotonic() - at < 2
    assert threading.active_count() == before
    for client in clients:
        with client:
            try:
                while client.recv(65536):
                    pass
            except ConnectionResetError:
                pass
    provider.close()


def test_a_request_that_comes_as_the_provider_closes_is_dropped_without_a_warning() -> None:
    """Its task was cancelled before it had begun: "coroutine was never awaited", in whichever test came next."""
    for _ in range(100):
        with FakeProvider(default=answer("late")) as provider:
            with open_socket(provider):
                pass
            connection = open_socket(provider)
        connection.close()
    gc.collect()
