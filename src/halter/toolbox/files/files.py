"""The file tools: read, write, patch and search, on this machine or on another.

On this machine every file is opened through descriptors of the workspace, so that no path and no link leads out of it;
see `workspace.py`. On another machine paths start at its working directory and may lead wherever that user may go.

At a stop a read and a search return what they have; a write or a patch is complete or was not made, and the result says
which. Calls of one batch on the same file run one after another; a search runs in parallel with anything.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from halter.cancel.context import checkpoint
from halter.models.types import Image
from halter.toolbox.files.backend import FileChange, LocalBackend, NotReplaced
from halter.toolbox.files.diff import MAX_COMPARED, diff_text
from halter.toolbox.files.locking_tool import locking_tool
from halter.toolbox.files.patch.apply import apply_patch, paths_in
from halter.toolbox.files.search.search import Query, search
from halter.toolbox.files.text_reader import show
from halter.toolbox.files.workspace import Workspace
from halter.tools.context import ToolContext

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from halter.toolbox.files.backend import FileBackend
    from halter.tools.tool import Tool

__all__ = ["FileTools", "Files"]

_MAX_WRITE: Final = 10_000_000  # bytes


def _content(backend: FileBackend, path: str) -> bytes:
    """The content of a file before it is replaced, up to what a diff can use."""
    try:
        found = backend.read(path, MAX_COMPARED + 1)
    except (OSError, ValueError, NotReplaced):  # then replacing it fails as well, and says why
        return b""
    return found.data if found is not None else b""


class FileTools:
    """The tools, for the files of any machine."""

    # Seconds that a call on a thread has to return what it has: a stop has to return within 50 ms.
    tool_grace: float = 0.03

    def backend(self, ctx: ToolContext) -> FileBackend:
        """The files, for the session that *ctx* belongs to."""
        raise NotImplementedError

    def lock_key(self, path: str) -> str:
        """The same text for the same file, however its path is written."""
        raise NotImplementedError

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them, for `Agent(tools=...)`."""
        return [self.read_file, self.write_file, self.patch, self.search_files]

    @property
    def reading_tools(self) -> list[Tool[..., Any]]:
        """Those that change nothing."""
        return [self.read_file, self.search_files]

    def lock_keys(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        """The files that a call uses: two calls on one file do not run at the same time."""
        given = arguments.get("path")
        if tool == "search_files":  # it only ever reads complete files
            return []
        paths = paths_in(arguments["changes"], given) if tool == "patch" else [given]
        return [self.lock_key(path) for path in paths if path]

    @locking_tool
    def read_file(
        self,
        path: str,
        ctx: ToolContext,
        start: Annotated[int, Meta(ge=1)] = 1,
        lines: Annotated[int, Meta(ge=1, le=10_000)] = 2000,
    ) -> Iterator[str | Image]:
        """Read a text file with line numbers, or view an image.

        Args:
            path: the file, relative to the working directory.
            start: the first line to return.
            lines: the maximum number of lines to return.

        """
        with contextlib.closing(self.backend(ctx).open(path)) as file:
            yield from show(file, path, start, lines)

    @locking_tool
    def write_file(self, path: str, content: str, ctx: ToolContext) -> str:
        """Create or overwrite a text file. Missing directories are created.

        Args:
            path: the file, relative to the working directory.
            content: the complete new content.

        """
        data = content.encode()
        if len(data) > _MAX_WRITE:
            raise ValueError(f"the content has {len(data):,} bytes; the limit is {_MAX_WRITE:,} bytes per call")
        checkpoint()  # this also asks for grace at a stop: a disk may be slow
        backend = self.backend(ctx)
        before = _content(backend, path)
        result = backend.replace([FileChange(path, data, before="any")])
        if result.stopped:
            return result.stopped
        [written] = result.files
        ctx.report(diff_text(written.path, None if written.is_new else before, data), is_diff=True)
        lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        return f"{'Created' if written.is_new else 'Replaced'} {written.path}: {lines:,} lines, {len(data):,} bytes."

    @locking_tool
    def patch(self, changes: str, ctx: ToolContext, path: str | None = None) -> str:
        """Change parts of files. Either all changes are made or none.

        Pass a unified diff (of one or more files; it may create and delete files), or blocks of this form, with the
        file name on the line before each block or in `path`:

        <<<<<<< SEARCH
        the current lines
        =======
        the new lines
        >>>>>>> REPLACE

        The lines of a SEARCH block must occur exactly once in the file. They are compared exactly; if that finds
        nothing, without trailing white space; if that finds nothing, with all lines indented more or less by the same
        amount. The result says when that was needed.

        Args:
            changes: the diff or the blocks.
            path: the file, relative to the working directory, if `changes` does not name it.

        """
        return apply_patch(self.backend(ctx), changes, path, report=lambda diff: ctx.report(diff, is_diff=True))

    @locking_tool
    def search_files(
        self,
        pattern: str,
        ctx: ToolContext,
        path: str = ".",
        *,
        glob: str | None = None,
        kind: Literal["content", "name"] = "content",
        ignore_case: bool = False,
        limit: Annotated[int, Meta(ge=1, le=1000)] = 200,
    ) -> Iterator[str]:
        """Search the content of files, or find files by name. Files ignored by .gitignore are left out, and so is .git.

        Args:
            pattern: for content, a regular expression as ripgrep takes it (no look-around, no backreferences); for
                names, a glob such as *.py, *.{js,ts} or src/**/a*.
            path: the directory or file to search, relative to the working directory.
            glob: search only files whose names match this glob.
            kind: search file content, or file names.
            ignore_case: whether to ignore case.
            limit: the maximum number of matches to return.

        """
        query = Query(pattern, glob, kind, ignore_case=ignore_case, limit=limit)
        yield from search(self.backend(ctx).search(path), query)


class Files(FileTools):
    """The tools for the files of one workspace: a `Workspace`, or the path of one."""

    def __init__(self, workspace: Workspace | str | os.PathLike[str]) -> None:
        self.workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        self._backend = LocalBackend(self.workspace)

    def backend(self, ctx: ToolContext) -> LocalBackend:  # noqa: ARG002
        """The files of the workspace."""
        return self._backend

    def lock_key(self, path: str) -> str:
        """The path that *path* leads to."""
        return self.workspace.lock_key(path)
