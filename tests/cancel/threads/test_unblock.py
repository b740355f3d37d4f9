"""Unblocking functions that ignore their token: by their children, and on demand by their sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time

import pytest

from halter import CancellationToken, Cancelled, run_blocking
from halter.cancel import abandoned
from halter.cancel.threads import unblock
from halter.testing import deaf_process
from tests.support.processes import is_alive, run_python, wait_dead
from tests.support.waiting import wait_until


def call_in_thread(fn: object, token: CancellationToken) -> threading.Thread:
    def call() -> None:
        with contextlib.suppress(Cancelled):
            run_blocking(fn, token=token)  # type: ignore[arg-type]

    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_eight_deaf_threads_in_plain_subprocess_come_back() -> None:
    """A tool that sits in Popen.wait() without looking at its token is brought back, and its child is dead."""
    processes: list[subprocess.Popen[bytes]] = []
    ended: list[float] = []

    def deaf() -> None:
        process = subprocess.Popen(["sleep", "30"])
        processes.append(process)
        process.wait()
        ended.append(time.monotonic())

    tokens = [CancellationToken() for _ in range(8)]
    callers = [call_in_thread(deaf, token) for token in tokens]
    wait_until(lambda: len(processes) == 8)
    for token in tokens:
        token.cancel()
    for caller in callers:
        caller.join(10)
    wait_until(lambda: len(ended) == 8)
    assert all(process.poll() is not None for process in processes)
    wait_until(lambda: len(abandoned) == 0)


def test_children_of_children_are_cut_too_and_those_that_resist_are_killed() -> None:
    """A shell with a job, and a process that ignores TERM and has an escaped child: none is left."""
    pids: list[int] = []

    def deaf() -> None:
        with subprocess.Popen(deaf_process(), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            pids.extend(int(word) for word in process.stdout.readline().split()[1:])
            with subprocess.Popen("sleep 30 & echo $!; wait", shell=True, stdout=subprocess.PIPE) as shell:
                assert shell.stdout is not None
                pids.append(int(shell.stdout.readline()))

    token = CancellationToken()
    caller = call_in_thread(deaf, token)
    wait_until(lambda: len(pids) == 2)
    token.cancel()
    caller.join(10)
    for pid in pids:
        wait_dead(pid)


def test_only_the_stopped_calls_children_are_cut() -> None:
    """Another call's child, and one that an earlier call left running on the same thread, live on."""
    left = run_blocking(subprocess.Popen, ["sleep", "30"])
    others: list[subprocess.Popen[bytes]] = []
    mine: list[subprocess.Popen[bytes]] = []

    def start(into: list[subprocess.Popen[bytes]]) -> None:
        process = subprocess.Popen(["sleep", "30"])
        into.append(process)
        process.wait()

    tokens = [CancellationToken(), CancellationToken()]
    try:
        callers = [call_in_thread(lambda: start(mine), tokens[0]), call_in_thread(lambda: start(others), tokens[1])]
        wait_until(lambda: mine and others)
        tokens[0].cancel()
        callers[0].join(10)
        wait_dead(mine[0].pid)
        assert is_alive(left.pid)
        assert is_alive(others[0].pid)
    finally:
        left.kill()
        left.wait()
        tokens[1].cancel()
        callers[1].join(10)
    wait_until(lambda: len(abandoned) == 0)


def test_a_thread_that_had_children_before_knows_them() -> None:
    """Children that a thread had before the call began are left alone."""
    before = unblock._children_now()  # such as idle workers whose thread has ended
    child = subprocess.Popen(["sleep", "30"])
    try:
        assert unblock._children_now() == before | {child.pid}
        assert unblock.ThreadWaits().children() == set()
        mine = subprocess.Popen(["sleep", "30"])
        waits = unblock.ThreadWaits()
        assert waits.children() == set()
        mine.kill()
        mine.wait()
    finally:
        unblock.end_of_call()
        child.kill()
        child.wait()
    assert unblock._children_now() <= before


def test_a_call_that_has_ended_has_no_children() -> None:
    """The stop of a call that ends at that moment comes late: the next call on its thread keeps its own child."""
    ended = unblock.ThreadWaits()
    unblock.end_of_call()
    unblock.ThreadWaits()
    child = subprocess.Popen(["sleep", "30"])
    try:
        assert not ended.can_unblock(time.monotonic())
        ended.unblock()
        assert child.poll() is None
    finally:
        unblock.end_of_call()
        child.kill()
        child.wait()


def test_without_proc_no_child_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the children of a thread are not listed, the call is abandoned and that is all."""
    monkeypatch.setattr(unblock, "HAS_PROC", False)
    child = subprocess.Popen(["sleep", "30"])
    try:
        waits = unblock.ThreadWaits()
        waits.unblock()
        assert child.poll() is None
    finally:
        unblock.end_of_call()
        child.kill()
        child.wait()


SOCKETS = """
    import socket, ssl, threading, sys
    from halter import CancellationToken, Cancelled, run_blocking
    from halter.cancel import abandoned, cut_sockets
    if sys.argv[1] == "on":
        cut_sockets()
        cut_sockets()
    server = socket.create_server(("127.0.0.1", 0))
    outside = socket.create_connection(server.getsockname())
    outside_peer, _ = server.accept()
    back = threading.Event()
    connected = threading.Event()

    def deaf():
        socket.socket().close()
        with socket.create_connection(server.getsockname()) as connection:
            connected.set()
            connection.recv(1)
        back.set()

    token = CancellationToken()
    def stop():
        connected.wait(10)
        token.cancel()
    threading.Thread(target=stop).start()
    try:
        run_blocking(deaf, token=token)
    except Cancelled:
        pass
    assert back.wait(0.5 if sys.argv[1] == "off" else 10) == (sys.argv[1] == "on")
    outside.sendall(b"x")
    assert outside_peer.recv(1) == b"x"
"""


def test_a_deaf_read_comes_back_when_sockets_are_cut() -> None:
    """After cut_sockets() a stop shuts the call's socket down, and no other; the thread comes back."""
    result = run_python(SOCKETS, "on")
    assert result.returncode == 0, result.stderr


def test_sockets_are_left_alone_by_default() -> None:
    """Nobody gets an audit hook without asking."""
    result = run_python(SOCKETS, "off")
    assert result.returncode == 0, result.stderr


def test_a_socket_is_shut_down_and_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread never closes a socket: the descriptor stays with its owner; TLS state is not touched."""
    monkeypatch.setattr(unblock, "_is_watching_sockets", True)
    ours, theirs = socket.socketpair()
    waits = unblock.ThreadWaits()
    unblock._note_socket("socket.__new__", (ours,))
    unblock._note_socket("open", ("file",))
    gone = socket.socket()
    unblock._note_socket("socket.__new__", (gone,))
    gone.close()
    dropped = socket.socket()
    unblock._note_socket("socket.__new__", (dropped,))
    dropped.close()
    del dropped
    waits.unblock()
    unblock.end_of_call()
    unblock._note_socket("socket.__new__", (theirs,))
    assert ours.fileno() >= 0
    assert theirs.recv(1) == b""
    assert os.fstat(ours.fileno())
    ours.close()
    theirs.close()
    assert ssl.SSLSocket.shutdown is not socket.socket.shutdown  # which is why the plain one is called


def test_a_child_that_was_started_during_the_grace_is_ended() -> None:
    """A call without a grace that was stopped together with it had found no child; that answer was used for both."""
    token = CancellationToken()
    gate = threading.Event()
    processes: list[subprocess.Popen[bytes]] = []

    def deaf() -> None:
        both_run.wait()
        gate.wait()

    def clean_up() -> None:
        both_run.wait()
        deaf_caller.join()  # it has left, and so has looked for children
        processes.append(subprocess.Popen(["sleep", "60"]))
        has_child.set()
        processes[0].wait()

    def call() -> None:
        with contextlib.suppress(Cancelled):
            run_blocking(clean_up, token=token, grace=2.0)

    has_child = threading.Event()
    both_run = threading.Barrier(3, timeout=30)
    deaf_caller = call_in_thread(deaf, token)
    caller = threading.Thread(target=call)
    caller.start()
    both_run.wait()
    token.cancel()
    assert has_child.wait(30)
    caller.join()
    assert processes[0].wait(30) < 0
    gate.set()
    wait_until(lambda: len(abandoned) == 0)
