"""A stop beside clients that never finish their request: 260 of them, at a gateway that may open 256 files.

    python bench/half_open.py [--clients 260] [--files 256] [--rounds 20]

Each stop has a connection of its own: a new client asks, while the others hold theirs. The same stop without them is
printed beside it. `limit` is what the gateway may open at all; it closes the connections that have waited longest.

Goal: a stop is answered within 1 s.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import resource
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.gateway_client import OWN

_GOAL = 1.0
_HALF = b"POST /v1/stop HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_STOP = _HALF + f"Authorization: Bearer {OWN}\r\nConnection: close\r\n\r\n".encode()


def stop(address: tuple[str, int]) -> float:
    """Seconds until a stop is answered."""
    began = time.perf_counter()
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(_STOP)
        answer = client.recv(4096)
    if not answer.startswith(b"HTTP/1.1 200"):
        message = f"the stop was answered with {answer[:60]!r}"
        raise RuntimeError(message)
    return time.perf_counter() - began


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=260)
    options.add_argument("--files", type=int, default=256)
    options.add_argument("--rounds", type=int, default=20)
    wanted = options.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "tests.support.gateway_program", f"{folder}/sessions.db", "0"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted.files, most))  # the gateway's, which inherits it
        gateway = subprocess.Popen(program, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        held: list[socket.socket] = []
        try:
            assert gateway.stdout is not None
            host, _, port = gateway.stdout.readline().decode().strip().removeprefix("http://").rpartition(":")
            address = (host, int(port))
            alone = [stop(address) for _ in range(wanted.rounds)]
            for _ in range(wanted.clients):
                held.append(socket.create_connection(address, timeout=60))
                held[-1].sendall(_HALF)
            beside = [stop(address) for _ in range(wanted.rounds)]
        finally:
            for each in held:
                each.close()
            gateway.terminate()
            gateway.wait()
    for name, times in (("alone", alone), (f"beside {wanted.clients} half-open connections", beside)):
        print(f"{name}: {statistics.median(times) * 1e3:.1f} ms at the median, {max(times) * 1e3:.1f} ms at most")
    is_met = max(beside) < _GOAL
    print(f"goal, within {_GOAL:g} s: {'met' if is_met else 'not met'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
