"""Tools whose processes run in a sandbox, if they were given one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halter.toolbox.sandbox.policy import Mode
    from halter.toolbox.sandbox.sandbox import Sandbox
    from halter.tools.context import ToolContext

__all__ = ["SandboxedTools"]


class SandboxedTools:
    """Base class of such tools. Each session has a sandbox of its own, with the same rules."""

    _sandbox: Sandbox | None = None

    @property
    def in_sandbox(self) -> bool:
        """Whether processes run in a sandbox."""
        return self._sandbox is not None

    @property
    def sandbox_mode(self) -> Mode:
        """The mode of the sandbox; "off" if there is none."""
        return "off" if self._sandbox is None else self._sandbox.mode

    def session_sandbox(self, ctx: ToolContext) -> Sandbox | None:
        """The sandbox of the session that *ctx* belongs to. Closed with the session."""
        return None if self._sandbox is None else ctx.keep(self._sandbox.for_session)
