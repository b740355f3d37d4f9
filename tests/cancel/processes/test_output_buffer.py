"""The output of processes: kept up to a limit, in bounded memory."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from halter import CancellationToken, run_process, run_process_blocking
from halter.cancel.processes.output_buffer import OutputBuffer
from tests.support.processes import run_python, wait_dead


def test_the_first_and_the_last_bytes_are_kept() -> None:
    """Of a stream that is longer than max_output, the two ends are returned, and the result says so."""
    result = run_process_blocking("seq -w 1 99999; echo err >&2", max_output=20)
    assert (result.stdout, result.stderr, result.truncated) == (b"00001\n0000998\n99999\n", b"err\n", True)
    assert len(result.stdout) == 20


def test_output_up_to_the_limit_is_whole() -> None:
    """Exactly max_output bytes are not truncated; one more is."""
    result = run_process_blocking("printf 0123456789", max_output=10)
    assert (result.stdout, result.truncated) == (b"0123456789", False)
    result = run_process_blocking("printf 0123456789 >&2", max_output=9)
    assert (result.stderr, result.truncated) == (b"012356789", True)


def test_with_a_limit_of_zero_only_the_callback_gets_output() -> None:
    """max_output=0 keeps nothing, and on_output still gets everything."""
    pieces: list[bytes] = []
    result = run_process_blocking("echo hi", max_output=0, on_output=pieces.append)
    assert (result.returncode, result.stdout, result.truncated, pieces) == (0, b"", True, [b"hi\n"])


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("limit", [0, 1, 2, 7, 100, 5000])
def test_a_buffer_keeps_the_same_bytes_however_they_arrive(size: int, limit: int) -> None:
    """Pieces of any size give the same two ends."""
    data = os.urandom(3000)
    buffer = OutputBuffer(limit)
    for start in range(0, len(data), size):
        buffer.add(data[start : start + size])
    head = limit // 2
    tail = data[max(head, len(data) - (limit - head)) :]
    assert buffer.content() == (data[:head] + tail if limit else b"", limit < len(data))


def test_a_stop_returns_the_ends_of_the_output_so_far() -> None:
    """A stopped process whose output was too long has what came first and last before the stop."""

    async def main() -> None:
        token = CancellationToken()
        seen = 0

        def on_output(piece: bytes) -> None:
            nonlocal seen
            seen += len(piece)
            if seen > 1_000_000:
                token.cancel()

        result = await run_process("echo first; yes", token=token, max_output=100, on_output=on_output)
        assert (result.cancelled, result.truncated, len(result.stdout)) == (True, True, 100)
        assert result.stdout.startswith(b"first\ny\n")

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None, "10"])
def test_a_limit_is_a_number_of_bytes(wrong: Any) -> None:
    """Anything else is refused, by name, before the command starts."""
    with pytest.raises((TypeError, ValueError), match="max_output"):
        run_process_blocking(["true"], max_output=wrong)


_MEMORY = """
    import asyncio, resource
    from halter import run_process

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    async def main():
        await run_process(["true"])
        before = peak()
        result = await run_process("head -c 300000000 /dev/zero", {options})
        assert result.returncode == 0 and result.truncated
        assert len(result.stdout) == 10_000_000
        assert peak() - before < 80, peak() - before

    asyncio.run(main())
"""


@pytest.mark.parametrize("options", ["", "on_output=lambda piece: None"])
def test_memory_is_bounded_while_a_process_writes(options: str) -> None:
    """300 MB of output cost a few times the limit at most, also on their way to a callback."""
    result = run_python(_MEMORY.format(options=options))
    assert result.returncode == 0, result.stderr


def test_a_callback_that_is_slow_makes_the_command_wait() -> None:
    """Output is not read faster than it is taken: the command waits, and nothing is lost."""
    waiting = threading.Event()
    sizes: list[int] = []

    def on_output(piece: bytes) -> None:
        if not sizes:
            # More than may wait in between: the command cannot end before we go on.
            waiting.wait(0.2)
        sizes.append(len(piece))

    result = run_process_blocking("head -c 20000000 /dev/zero", on_output=on_output, max_output=0)
    assert (result.returncode, sum(sizes)) == (0, 20_000_000)


def test_a_stop_ends_a_command_whose_output_nobody_takes() -> None:
    """The thread that waits for the callback is woken by the stop, and the command is dead soon after."""

    async def main() -> int:
        token = CancellationToken()
        pid = 0

        def on_output(piece: bytes) -> None:
            nonlocal pid
            if not pid:
                pid = int(piece.split()[0])
                threading.Event().wait(0.2)  # blocks the loop while the output piles up
                token.cancel()

        result = await run_process("echo $$; exec yes", token=token, grace=0, on_output=on_output, max_output=10)
        assert result.cancelled
        return pid

    pid = asyncio.run(main())
    wait_dead(pid)
