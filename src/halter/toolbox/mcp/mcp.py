"""The tools of any MCP server, over stdio or streamable HTTP.

    with MCP.stdio("npx", ["-y", "some-server"], inherit=["SOME_KEY"]) as server:
        agent = Agent("openai:gpt-5", tools=server.tools())

A stop or a steer returns at once: the server is notified (`notifications/cancelled`, or the end of the request's
stream, where the protocol has that instead), a late answer is ignored, and the server stays alive for the next call.
One that ignores the notification continues its work, and is not killed for that: other calls may use it.

The connection belongs to this object, not to a session: it is opened by `tools()` or the first call, shared by all
sessions, opened again after the server has died, and ended by `close()` or with the process.

Needs the `mcp` package: pip install 'halter[mcp]'.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from halter._extras import need
from halter.cancel.loop_thread import LoopClosed, LoopThread
from halter.models.types import Audio, Image, Part, Text, ToolSpec
from halter.toolbox.mcp.connection import CONNECTION_CLOSED, Http, ServerConnection, ServerFailed, Transport, message_of
from halter.toolbox.mcp.stdio import THREAD, Stdio
from halter.tools.context import ToolContext
from halter.tools.external import SpecTool, fit_name
from halter.tools.schema.json_schema import inline_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halter.toolbox.sandbox.sandbox import Sandbox

_CLOSE_TIMEOUT: Final = 4.0  # seconds for a server to end: by itself, after TERM, after KILL
_MAX_PAGES: Final = 100


class MCP:
    """One MCP server, whose tools can be given to an agent. Make it with `MCP.stdio(...)` or `MCP.http(...)`."""

    def __init__(
        self,
        transport: Transport,
        *,
        prefix: str = "",
        timeout: float | None = None,
        connect_timeout: float = 30.0,
        approval: bool = False,
        mode: str = "auto",
    ) -> None:
        """Connect to nothing yet.

        Args:
            transport: how the server is reached.
            prefix: put before the names of its tools, for when two servers have the same ones.
            timeout: seconds that one call may take.
            connect_timeout: seconds for the server to start and to answer for the first time.
            approval: whether a person has to allow each call.
            mode: how the SDK settles on a version of the protocol: "auto", or "legacy" for the `initialize` handshake.

        """
        need("mcp", "mcp")
        self._transport = transport
        self._prefix = prefix
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._approval = approval
        self._loop = LoopThread(THREAD)
        self._connection = ServerConnection(transport, mode, connect_timeout)
        self._lock = threading.Lock()

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        inherit: Sequence[str] = (),
        cwd: str | None = None,
        sandbox: Sandbox | None = None,
        **options: Any,
    ) -> MCP:
        """A server that is started as a child process, and ends with us, however we end.

        It gets PATH, HOME and their like, what *env* gives, and of our own environment the variables that *inherit*
        names; nothing else, for that is where the secrets are. It runs in *sandbox*, if one is given: many servers need
        `Sandbox(workspace, network=True)`.
        """
        return cls(Stdio(command, args, env or {}, inherit, cwd, sandbox), **options)

    @classmethod
    def http(cls, url: str, *, headers: Mapping[str, str] | None = None, **options: Any) -> MCP:
        """A server that runs somewhere; *headers* go with every request."""
        return cls(Http(url, headers or {}), **options)

    # -- the tools ------------------------------------------------------------------------------

    def tools(self) -> list[SpecTool]:
        """Connect, and return the server's tools. Blocks; in an event loop, await `atools()`."""
        return self._make_tools(self._loop.do_blocking(self._list, self._connect_timeout * 2 + 1.0))

    async def atools(self) -> list[SpecTool]:
        """Connect, and return the server's tools."""
        return self._make_tools(await self._loop.do(self._list))

    async def _list(self) -> list[Any]:
        connection = await self._connection.connected()
        found: list[Any] = []
        cursor: str | None = None
        try:
            for _ in range(_MAX_PAGES):  # a server may never send a last page
                page = await connection.client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
        except Exception as error:
            raise self._translate(connection, error) from error
        return found

    def _make_tools(self, listed: list[Any]) -> list[SpecTool]:
        # A tool that runs only as a task cannot be called: we do not poll for results.
        return [self._tool(each) for each in listed if not _needs_task(each)]

    def _tool(self, listed: Any) -> SpecTool:
        name = fit_name(f"{self._prefix}{listed.name}")
        spec = ToolSpec(name, listed.description or listed.title or "", inline_object(listed.input_schema, "mcp"))

        async def call(arguments: dict[str, Any], ctx: ToolContext) -> list[Part] | str:
            return await self._call(listed.name, arguments, ctx)

        return SpecTool(spec, call, timeout=self._timeout, approval=self._approval)

    async def _call(self, name: str, arguments: dict[str, Any], ctx: ToolContext) -> list[Part] | str:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            ctx.report(_progress(progress, total, message))

        async def work() -> Any:
            connection = await self._connection.connected()
            try:
                try:
                    return await connection.client.call_tool(name, arguments, progress_callback=report)
                except Exception as error:
                    # Only what the server has refused is called again. Any other call may have had its effect.
                    if not (connection.session_is_unknown and _is_answer(error)):
                        raise
                connection.on_death()
                connection = await self._connection.connected()
                return await connection.client.call_tool(name, arguments, progress_callback=report)
            except Exception as error:
                raise self._translate(connection, error) from error

        return _content(await self._loop.do(work))

    def _translate(self, connection: Any, error: Exception) -> Exception:
        """The error to raise for one of the SDK: the server's own message, or that the connection was lost."""
        if isinstance(error, ServerFailed):
            return error
        if _is_answer(error):
            return ServerFailed(message_of(error))
        if isinstance(error, (RuntimeError, ValueError)) and not connection.is_dead:  # as if its schema does not fit
            return ServerFailed(f"the server answered, but the answer cannot be used: {message_of(error)}")
        lost: Exception = connection.lost(error)
        return lost

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection, and a server that is our child. Bounded; from any thread, at any time, more than once."""
        with self._lock:
            # Closed already, or it hangs: then its loop is ended around it.
            with contextlib.suppress(LoopClosed, TimeoutError):
                self._loop.do_blocking(self._connection.close, _CLOSE_TIMEOUT)
            self._loop.close()
            self._transport.wait_ended(_CLOSE_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_answer(error: Exception) -> bool:
    """Whether an error of the SDK is the server's answer."""
    code = getattr(error, "code", None)
    return isinstance(code, int) and code != CONNECTION_CLOSED


def _needs_task(listed: Any) -> bool:
    return listed.execution is not None and listed.execution.task_support == "required"


def _progress(done: float, total: float | None, message: str | None) -> str:
    count = f"{done:g}" if total is None else f"{done:g} of {total:g}"
    return f"{message} ({count})" if message else count


def _content(result: Any) -> list[Part] | str:
    """The result as parts; `isError` raises an error with its text."""
    parts = [part for block in result.content for part in _parts(block)]
    if result.is_error:
        message = "\n".join(part.text for part in parts if isinstance(part, Text))
        raise ServerFailed(message or "the tool failed without an error message")
    if not parts and result.structured_content is not None:
        import msgspec

        return msgspec.json.encode(result.structured_content).decode()
    return parts


def _parts(block: Any) -> list[Part]:
    kind = block.type
    if kind == "text":
        return [Text(block.text)]
    if kind == "image":
        return [Image(base64.b64decode(block.data), media_type=block.mime_type)]
    if kind == "audio":
        return [Audio(base64.b64decode(block.data), media_type=block.mime_type)]
    if kind == "resource_link":
        return [Text(f"[{block.name}]({block.uri})")]
    if kind == "resource":
        return _resource(block.resource)
    return [Text(f"(content of type {kind}, which is not supported)")]


def _resource(resource: Any) -> list[Part]:
    text = getattr(resource, "text", None)
    if text is not None:
        return [Text(text)]
    kind, data = resource.mime_type or "", base64.b64decode(resource.blob)
    if kind.startswith("image/"):
        return [Image(data, media_type=kind)]
    try:
        return [Text(data.decode())]  # servers send text as a blob, too
    except UnicodeDecodeError:
        return [Text(f"({resource.uri}: {len(data):,} bytes of {kind or 'data'}, which is not text)")]
