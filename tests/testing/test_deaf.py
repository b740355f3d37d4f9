"""The deaf ones are deaf, and end when they are released."""

from __future__ import annotations

import asyncio
import signal
import subprocess

from halter import CancellationToken
from halter.testing import DeafCoroutine, DeafTool, deaf_process
from tests.support.processes import is_alive, wait_dead


def test_a_deaf_tool_returns_when_it_is_released() -> None:
    """It ignores its token; leaving its block releases it."""
    token = CancellationToken()
    token.cancel()
    with DeafTool("value") as deaf, token.bind():
        deaf.release()
        assert deaf() == "value"
    assert deaf.calls == 1
    assert deaf.started.is_set()
    assert deaf.returned.is_set()


def test_a_deaf_coroutine_swallows_cancellations() -> None:
    """It counts them, and goes on."""

    async def main() -> None:
        deaf = DeafCoroutine("value")
        deaf.release()  # not started yet: nothing to release
        task = asyncio.create_task(deaf())
        await asyncio.sleep(0)
        for n in range(1, 3):
            task.cancel()
            while deaf.swallowed < n:  # noqa: ASYNC110  (it only counts)
                await asyncio.sleep(0)
        deaf.release()
        assert await task == "value"
        assert deaf.swallowed == 2

    asyncio.run(main())


def test_a_deaf_process_ignores_what_is_polite() -> None:
    """TERM, INT and HUP do nothing; its escapee is in another session and has another parent."""
    process = subprocess.Popen(deaf_process(escape=True), stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    pid, escapee = (int(word) for word in process.stdout.readline().split()[1:])
    assert pid == process.pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    with open(f"/proc/{escapee}/stat") as file:
        parent, _, session = file.read().rpartition(")")[2].split()[1:4]
    assert int(parent) != pid
    assert int(session) != pid
    assert is_alive(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    subprocess.run(["kill", "-9", str(escapee)], check=True)
    wait_dead(escapee)
