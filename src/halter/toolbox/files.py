"""Files of a workspace: read, write, patch, search.

Every file is opened through the workspace's own descriptors, so no path and no link leads out of it; see
`halter.toolbox.workspace`. What is given back is bounded and says what was left out.

At a stop: a read and a search give what they have; a write or a patch is whole or was not done, and says which. Calls
of one batch on one file run in turn; a search runs beside anything, since what it reads is always whole.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from halter.cancel.context import checkpoint, current_token
from halter.models.model import Image
from halter.toolbox import patching
from halter.toolbox.atomic import Draft
from halter.toolbox.claims import claiming_tool
from halter.toolbox.ground import WorkspaceGround
from halter.toolbox.reading import show
from halter.toolbox.search import Query, search
from halter.toolbox.shelf import WorkspaceShelf
from halter.toolbox.workspace import Workspace
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Files"]

# What is on a thread gets so long to hand back what it has: control is to be back within 50 ms.
GRACE: Final = 0.03
_MOST_WRITTEN: Final = 10_000_000


class Files:
    """The tools for the files of one workspace: a `Workspace`, or the path of one."""

    def __init__(self, workspace: Workspace | str | os.PathLike[str]) -> None:
        self.workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them, for `Agent(tools=...)`."""
        return [self.read_file, self.write_file, self.patch, self.search_files]

    def claims(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        """The files that a call touches: two calls on one file do not run side by side."""
        given = arguments.get("path")
        paths = patching.paths_in(arguments["changes"], given) if tool == "patch" else [given]
        return [self.workspace.claim(path) for path in paths if path]

    @claiming_tool(grace=GRACE)
    def read_file(
        self, path: str, start: Annotated[int, Meta(ge=1)] = 1, lines: Annotated[int, Meta(ge=1, le=10_000)] = 2000
    ) -> Iterator[str | Image]:
        """Read a text file with its line numbers, or look at a picture.

        Args:
            path: the file, from the root of the workspace.
            start: the first line to give.
            lines: how many lines to give at most.

        """
        descriptor = self.workspace.open(path)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            yield from show(file, path, size, start, lines)

    @claiming_tool(grace=GRACE)
    def write_file(self, path: str, content: str) -> str:
        """Write a text file, new or over an old one. Directories that are missing are made.

        Args:
            path: the file, from the root of the workspace.
            content: the whole new content.

        """
        data = encoded(content)
        checkpoint()  # and be given time at a stop: a disk may take some
        with self.workspace.find(path, make_parents=True) as place:
            try:
                is_new = place.stat() is None
                draft = Draft(place, data)
            except BaseException:
                place.undo_parents()
                raise
            if current_token().is_cancelled:
                draft.discard()
                place.undo_parents()
                return f"Nothing was written: the stop came first. {place.path} is as it was."
            draft.commit()
            return written(place.path, data, is_new=is_new)

    @claiming_tool(grace=GRACE)
    def patch(self, changes: str, path: str | None = None) -> str:
        """Change parts of files: all the changes are made, or none.

        Give a unified diff (of one or more files, new and deleted ones too), or blocks of this form, with the name
        of the file on the line before the block, or in `path`:

        <<<<<<< SEARCH
        the lines as they are
        =======
        the lines as they shall be
        >>>>>>> REPLACE

        What a block searches must be in the file exactly once. Lines are compared exactly; if that finds nothing,
        without the white space at their ends; if that finds nothing, with all of them indented more or less by the
        same amount. The answer says so when that was needed.

        Args:
            changes: the diff, or the blocks.
            path: the file, from the root of the workspace; if `changes` does not name it.

        """
        return patching.apply(WorkspaceShelf(self.workspace), changes, path)

    @tool(grace=GRACE)
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
        """Search for lines in files, or for files by name. What .gitignore files name is left out, and so is .git.

        Args:
            pattern: for content a regular expression; for names a pattern with *, ? and **, such as *.py or src/**/a*.
            path: the directory or file to search in, from the root of the workspace.
            glob: search only in files with such names.
            kind: search in the content of files, or for their names.
            ignore_case: whether upper and lower case are the same.
            most: how many matches to give at most.

        """
        query = Query(pattern, path, glob, kind, ignore_case=ignore_case, most=most)
        yield from search(WorkspaceGround(self.workspace, path), query, ctx.report)


def encoded(content: str) -> bytes:
    """A content as it is written, if it is not too much."""
    data = content.encode()
    if len(data) > _MOST_WRITTEN:
        msg = f"the content has {len(data):,} bytes; at most {_MOST_WRITTEN:,} can be written at once"
        raise ValueError(msg)
    return data


def written(path: str, data: bytes, *, is_new: bool) -> str:
    """What is told of a file that was written."""
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return f"{'Made' if is_new else 'Replaced'} {path}: {lines:,} lines, {len(data):,} bytes."
