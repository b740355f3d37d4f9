"""The browser's proxy: what becomes of its connections when it is closed."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
import warnings
from collections.abc import Iterator

import pytest

from halter.cancel.loop_thread import LoopThread
from halter.toolbox.browser.proxy import FilteringProxy
from halter.toolbox.http.addresses import Rules


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """Leave what exists out of garbage collections, of which this test makes many: a million imported objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("delay", [0, 0.00005, 0.0001, 0.0002, 0.0005, 0.002])
def test_a_proxy_that_is_closed_while_connections_arrive_leaves_none_open(
    delay: float, caplog: pytest.LogCaptureFixture
) -> None:
    """At whatever moment it is closed: each connection ends, no descriptor is left, and nothing is logged."""
    caplog.clear()  # of what objects of earlier tests log when they are freed
    for _ in range(20):
        home = LoopThread("test-proxy")
        proxy = FilteringProxy(Rules(allow=()))
        port = home.do_blocking(proxy.start, 10)
        before = len(os.listdir("/proc/self/fd"))
        with contextlib.ExitStack() as clients:
            opened = [clients.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(3)]
            time.sleep(delay)  # each delay is another moment: accepted, started, reading
            home.call(proxy.close)
            home.close()
            for client in opened:
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""
            del home, proxy
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                gc.collect()
        assert len(os.listdir("/proc/self/fd")) < before
    assert not caplog.records
