"""An MCP server for the tests, written with the SDK: `python mcp_server.py stdio DIR` or `… http DIR`.

What it is told and what becomes of its calls it writes down in DIR, one file for each thing: those can be waited for.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import BlobResourceContents, EmbeddedResource

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
    "e221bc330000000049454e44ae426082"
)
notes = Path(sys.argv[2]) if __name__ == "__main__" else Path()
server = MCPServer("tests")


def note(name: str, text: str = "") -> None:
    new = notes / f"{name}.new"
    new.write_text(text)
    new.rename(notes / name)  # whoever sees it sees it whole


@server.tool()
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
async def slow(name: str, ctx: Context) -> str:
    """Never end; note when it was begun and when it was cancelled."""
    await ctx.report_progress(1, 3, "looking")
    note(f"{name}-begun")
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        note(f"{name}-cancelled")
        raise
    return "never"


@server.tool()
async def deaf(name: str) -> str:
    """Ignore that it was cancelled, and answer when the file NAME-go is there."""
    note(f"{name}-begun")
    with anyio.CancelScope(shield=True):
        while not (notes / f"{name}-go").exists():  # noqa: ASYNC110  (the test has no other way in)
            await anyio.sleep(0.005)
    note(f"{name}-ended")
    return f"the late answer of {name}"


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Tell of its progress."""
    for step in range(count):
        await ctx.report_progress(step + 1, count, f"step {step + 1}")
    return "all steps done"


@server.tool()
async def noisy() -> str:
    """Print a line that is not UTF-8 where only messages belong."""
    os.write(1, b"\xff\xfe noise\n")
    return "done"


@server.tool()
async def wrong() -> str:
    """Fail, and say why."""
    raise ToolError("the cupboard is bare")


@server.tool()
async def picture() -> list[str | Image]:
    """Give a text and a picture."""
    return ["one pixel:", Image(data=PIXEL, format="png")]


@server.tool()
async def blobs() -> list[EmbeddedResource]:
    """Give a text and some bytes, both as blobs."""
    given = {"note": b"a text\n", "data": b"\xff\xfe"}
    return [
        EmbeddedResource(
            type="resource",
            resource=BlobResourceContents(
                uri=f"file:///{name}", mime_type="text/plain", blob=base64.b64encode(data).decode()
            ),
        )
        for name, data in given.items()
    ]


@server.tool()
async def crash() -> str:
    """End the whole server."""
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    os._exit(7)


@server.tool()
async def environment() -> str:
    """The names of the variables that it was given."""
    return " ".join(sorted(os.environ))


@server.tool()
async def variable(name: str) -> str:
    """The value of a variable."""
    return os.environ.get(name, "")


@server.tool()
async def write(path: str) -> str:
    """Write a file; tell what went wrong."""
    try:
        await anyio.Path(path).write_text("written")
    except OSError as error:
        return str(error)
    return "written"


@server.tool()
async def number() -> str:
    """The number of its process."""
    return str(os.getpid())


@server.tool(name="odd.name/here")
async def odd() -> str:
    """Has a name that no provider takes."""
    return "odd"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        note("pid", str(os.getpid()))
        server.run("stdio")
    else:
        import socket

        import uvicorn

        listener = socket.create_server(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
        note("port", str(listener.getsockname()[1]))
        config = uvicorn.Config(server.streamable_http_app(), log_level="warning")
        uvicorn.Server(config).run([listener])
