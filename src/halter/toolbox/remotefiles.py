"""The file tools for another machine: what is told of those of a workspace holds for these, and they do the same.

The difference is where paths may lead: they begin at the directory where the machine is worked in, and others lead
wherever that user may go there, as a command does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from halter.cancel.token import Cancelled
from halter.models.model import Image
from halter.toolbox import patching
from halter.toolbox.claims import claiming_tool
from halter.toolbox.files import Files, encoded, written
from halter.toolbox.reading import show
from halter.toolbox.remoteground import RemoteGround
from halter.toolbox.remoteshelf import claim
from halter.toolbox.search import Query, search
from halter.tools.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halter.toolbox.machine import Machine
    from halter.toolbox.remoteshelf import RemoteShelf

__all__ = ["GRACE", "RemoteFileTools"]

GRACE: Final = 0.2  # nothing here waits for the machine after a stop


class RemoteFileTools:
    """The tools for the files of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def shelf(self, ctx: ToolContext) -> RemoteShelf:
        """The files, through the connection of the session that *ctx* belongs to."""
        raise NotImplementedError

    def claims(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:  # noqa: ARG002
        """The files that a call touches: two calls on one file do not run side by side."""
        given = None if "pattern" in arguments else arguments.get("path")  # what a search reads is always whole
        paths = patching.paths_in(arguments["changes"], given) if "changes" in arguments else [given]
        return [f"{self.machine.name}:{claim(self.machine.directory, path)}" for path in paths if path]

    @claiming_tool(grace=GRACE, like=Files.read_file)
    def read_file(
        self,
        path: str,
        ctx: ToolContext,
        start: Annotated[int, Meta(ge=1)] = 1,
        lines: Annotated[int, Meta(ge=1, le=10_000)] = 2000,
    ) -> Iterator[str | Image]:
        """As the local one."""
        file = self.shelf(ctx).open(path)
        yield from show(file, path, file.size, start, lines, file)

    @claiming_tool(grace=GRACE, like=Files.write_file)
    def write_file(self, path: str, content: str, ctx: ToolContext) -> str:
        """As the local one."""
        data = encoded(content)
        shelf = self.shelf(ctx)
        try:
            return written(path, data, is_new=shelf.write(path, data))
        except Cancelled:
            return f"[stopped: {path} is as it was, or has all of its new content; look before you go on]"

    @claiming_tool(grace=GRACE, like=Files.patch)
    def patch(self, changes: str, ctx: ToolContext, path: str | None = None) -> str:
        """As the local one."""
        return patching.apply(self.shelf(ctx), changes, path)

    @claiming_tool(grace=GRACE, like=Files.search_files)
    def search_files(
        self,
        pattern: str,
        ctx: ToolContext,
        path: str = ".",
        *,
        glob: str | None = None,
        kind: Literal["content", "name"] = "content",
        ignore_case: bool = False,
        most: Annotated[int, Meta(ge=1, le=1000)] = 200,
    ) -> Iterator[str]:
        """As the local one."""
        query = Query(pattern, path, glob, kind, ignore_case=ignore_case, most=most)
        yield from search(RemoteGround(self.shelf(ctx), path), query, ctx.report)
