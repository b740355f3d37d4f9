"""The child process that serves a GGUF file: llama.cpp's OpenAI-compatible server on the loopback address.

Run as a script, not as part of the package: nothing of Halter is imported here. It reads one line of JSON from standard
input (the file, a key, limits), writes one line when it serves or has failed, and ends when its parent does, in any
way: standard input is closed with the parent, and on Linux the parent is also watched directly, because a process that
the parent has forked may hold the other end of our input open.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import sys
import threading
from typing import Any


def _end_with(parent: int) -> None:
    """Wait for the end of the parent, then exit."""
    ends: list[int] = [0]
    # Not on every system; and if the parent is gone already, standard input is at its end.
    with contextlib.suppress(AttributeError, OSError):
        ends.append(os.pidfd_open(parent))
    while True:
        ready, _, _ = select.select(ends, [], [])
        if ready != [0] or not os.read(0, 4096):
            os._exit(0)


def _serve(settings: dict[str, Any]) -> tuple[object, str]:
    xllamacpp = importlib.import_module("xllamacpp")

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.n_ctx = settings["context"]
    params.n_parallel = 1
    # The server notices a stop only between batches, and reads a prompt in batches.
    params.n_batch = params.n_ubatch = 64
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.ui = False
    params.warmup = False
    server = xllamacpp.Server(params)
    return server, str(server.listening_address)


def main() -> None:
    """Serve until the parent ends."""
    settings = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with, args=(settings["parent"],), daemon=True).start()
    # The library may write to standard output, on which the parent waits for one line: so it gets another one.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        server, url = _serve(settings)
    except Exception as exc:  # noqa: BLE001 - a boundary: reported to the parent
        out.write(json.dumps({"error": f"{type(exc).__name__}: {exc}"}) + "\n")
        out.flush()
        os._exit(1)
    out.write(json.dumps({"url": url}) + "\n")
    out.flush()
    threading.Event().wait()
    del server


if __name__ == "__main__":
    main()
