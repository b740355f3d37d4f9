"""The parameters of the methods of the Agent Client Protocol, version 1, as far as they are used."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct, field

__all__ = [
    "AudioBlock",
    "ClientMcpServer",
    "ContentBlock",
    "ElicitationResult",
    "ImageBlock",
    "InitializeParams",
    "ListParams",
    "LoadParams",
    "NewParams",
    "PermissionOutcome",
    "PermissionResult",
    "PromptParams",
    "Resource",
    "ResourceBlock",
    "ResourceLinkBlock",
    "SessionParams",
    "TextBlock",
]


class TextBlock(Struct, tag="text"):
    """A piece of text."""

    text: str


class ImageBlock(Struct, tag="image", rename="camel"):
    """An image, as base64."""

    data: bytes
    mime_type: str = "image/png"


class AudioBlock(Struct, tag="audio", rename="camel"):
    """Sound, as base64."""

    data: bytes
    mime_type: str = "audio/wav"


class ResourceLinkBlock(Struct, tag="resource_link", rename="camel"):
    """The address of a file, or of something else that the agent can read."""

    uri: str
    name: str = ""


class Resource(Struct, rename="camel"):
    """The content of a file: a text, or base64."""

    uri: str
    text: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None


class ResourceBlock(Struct, tag="resource"):
    """A file with its content."""

    resource: Resource


ContentBlock: TypeAlias = TextBlock | ImageBlock | AudioBlock | ResourceLinkBlock | ResourceBlock


class Elicitation(Struct):
    """Whether the client can ask the user with a form."""

    form: dict[str, Any] | None = None


class ClientCapabilities(Struct):
    """What the client can do."""

    elicitation: Elicitation | None = None


class InitializeParams(Struct, rename="camel"):
    """The parameters of `initialize`."""

    protocol_version: int
    client_capabilities: ClientCapabilities | None = None


class NamedValue(Struct):
    """A variable of the environment, or a header."""

    name: str
    value: str


class ClientMcpServer(Struct):
    """An MCP server that the client wants the agent to use: a command, or an address."""

    name: str
    type: str = "stdio"
    command: str = ""
    args: list[str] = []
    env: list[NamedValue] = []
    url: str = ""
    headers: list[NamedValue] = []


class NewParams(Struct, rename="camel"):
    """The parameters of `session/new`."""

    cwd: str
    mcp_servers: list[ClientMcpServer] = field(default_factory=list)


class LoadParams(Struct, rename="camel"):
    """The parameters of `session/load` and `session/resume`."""

    session_id: str
    cwd: str
    mcp_servers: list[ClientMcpServer] = field(default_factory=list)


class ListParams(Struct):
    """The parameters of `session/list`."""

    cwd: str | None = None
    cursor: str | None = None


class SessionParams(Struct, rename="camel"):
    """The parameters of methods that need only a session."""

    session_id: str


class PromptParams(Struct, rename="camel"):
    """The parameters of `session/prompt`."""

    session_id: str
    prompt: list[ContentBlock]


class PermissionOutcome(Struct, rename="camel"):
    """What the user has chosen; "cancelled" or "selected"."""

    outcome: str
    option_id: str = ""


class PermissionResult(Struct):
    """The result of `session/request_permission`."""

    outcome: PermissionOutcome


class ElicitationResult(Struct):
    """The result of `elicitation/create`: "accept", "decline" or "cancel"."""

    action: str
    content: dict[str, Any] | None = None
