"""An OpenAI-compatible server for requests other than chat: images, speech, transcription.

One request, one complete answer. However it ends, by a stop, an error or the time limit, its connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from halter._own_keys import read_key
from halter.cancel.deadlines import check_seconds
from halter.models.errors import UNREADABLE, ModelError, StreamBroken
from halter.models.http.client import Reply, post
from halter.models.http.wire import FIRST_FAILURE, read_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Endpoint", "Form", "Upload"]

_DEFAULT_URL: Final = "https://api.openai.com/v1"


class Upload(NamedTuple):
    """A file in a form."""

    name: str
    data: bytes
    media_type: str = "application/octet-stream"


class Form(NamedTuple):
    """A multipart form."""

    fields: Mapping[str, str]
    files: Mapping[str, Upload]

    def encode(self) -> tuple[str, bytes]:
        """Its content type and its bytes."""
        boundary = secrets.token_hex(16)  # a text that is in no file
        parts: list[bytes] = []
        for key, value in self.fields.items():
            parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode())
        for key, file in self.files.items():
            name = "".join(each for each in file.name if each.isprintable() and each not in '"\\')
            parts += [
                f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"; filename="{name}"\r\n'.encode(),
                f"Content-Type: {file.media_type}\r\n\r\n".encode(),
                file.data,
                b"\r\n",
            ]
        parts.append(f"--{boundary}--\r\n".encode())
        return f"multipart/form-data; boundary={boundary}", b"".join(parts)


class Endpoint:
    """One server and its key; by default from OPENAI_BASE_URL and OPENAI_API_KEY in the environment."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 300.0,
        limit: int = 50_000_000,
    ) -> None:
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL).rstrip("/")
        self._key = read_key("OPENAI_API_KEY") if api_key is None else api_key
        self._timeout = check_seconds("timeout", timeout)
        self._limit = limit

    async def post(self, path: str, body: dict[str, Any] | Form) -> bytes:
        """Send *body* and return the complete answer. Raises a ModelError with what the server said."""
        kind, data = body.encode() if isinstance(body, Form) else ("application/json", msgspec.json.encode(body))
        headers = {"content-type": kind, "accept-encoding": "identity", "user-agent": "halter"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        try:
            async with asyncio.timeout(self._timeout):
                reply = await post(f"{self.base_url}{path}", headers=headers, body=data)
                with contextlib.closing(reply):
                    return await self._read(reply)
        except TimeoutError:
            raise ModelError(f"{self.base_url}{path} took longer than {self._timeout:g} s") from None

    async def post_json(self, path: str, body: dict[str, Any] | Form) -> dict[str, Any]:
        """Send *body* and return the JSON object of the answer."""
        answer = await self.post(path, body)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except UNREADABLE as error:
            raise StreamBroken(f"{self.base_url}{path} did not answer with a JSON object") from error

    async def _read(self, reply: Reply) -> bytes:
        if reply.status >= FIRST_FAILURE:
            raise await read_refusal(reply, [self._key])
        body = await reply.read_all(self._limit + 1)
        if len(body) > self._limit:
            raise ModelError(f"the answer is larger than {self._limit:,} bytes")
        await reply.finish()
        return body
