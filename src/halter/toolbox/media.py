"""Pictures: made from words, and looked at, by models behind OpenAI-compatible servers.

    agent = Agent(model, Media(workspace="work", vision="gpt-5").tools)

A stop closes the request as the server sees it. A picture is written whole or not at all; of an answer about a picture
a stop keeps what was said so far.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import Cancelled
from halter.models.endpoint import Endpoint
from halter.models.errors import ModelError
from halter.models.model import Image, ModelRequest, Part, Text, TextDelta, UserMessage
from halter.models.openai import OpenAIModel
from halter.models.request import Exchange
from halter.toolbox.addresses import server_of
from halter.toolbox.net import FetchError, Net
from halter.toolbox.placing import inside, read_bounded, save
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from halter.models.model import Model
    from halter.models.progress import RequestEvent

__all__ = ["Media"]

_IMAGE_BYTES: Final = 20_000_000
_MOST_IMAGES: Final = 4
_REPORT_EVERY: Final = 200  # characters


class Media:
    """Tools that make pictures and look at them.

    *base_url* and *api_key* are those of the server, without which the environment's OPENAI_BASE_URL and OPENAI_API_KEY
    hold. *vision* is a model, or the name of one on that server. *extra* goes into requests for pictures as it is.
    *show* says whether the agent's own model is given the pictures that were made, and not only told of their files.
    """

    def __init__(  # noqa: PLR0913  (each is the user's to set, and all have a default)
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        workspace: str | Path = ".",
        image_model: str = "gpt-image-1",
        vision: Model | str = "gpt-5-mini",
        net: Net | None = None,
        extra: Mapping[str, Any] | None = None,
        show: bool = True,
        timeout: float = 300.0,
    ) -> None:
        self._endpoint = Endpoint(base_url, api_key, timeout=timeout)
        self._workspace = Path(workspace)
        self._image_model = image_model
        self._vision = OpenAIModel(vision, base_url=base_url, api_key=api_key) if isinstance(vision, str) else vision
        self._net = Net(max_bytes=_IMAGE_BYTES) if net is None else net
        self._results_net = Net(max_bytes=_IMAGE_BYTES, allow=[server_of(self._endpoint.base_url)])
        self._extra = dict(extra or {})
        self._show = show

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """Both tools."""
        return [self.image_generate, self.vision_analyze]

    @tool
    async def image_generate(
        self, prompt: str, ctx: ToolContext, size: str = "1024x1024", path: str = "", count: int = 1
    ) -> AsyncIterator[list[Part]]:
        """Make a picture from a description.

        Args:
            prompt: what the picture shows, in detail
            ctx: the call
            size: width and height, such as 1024x1024, or auto
            path: the file in the workspace to write it to; several pictures are numbered
            count: how many pictures, 1 to 4

        """
        count = min(max(count, 1), _MOST_IMAGES)
        target = inside(self._workspace, path) if path else None
        ctx.report("waiting for the picture")
        wanted = {"model": self._image_model, "prompt": prompt, "n": count, "size": size, **self._extra}
        answer = await self._endpoint.post_json("/images/generations", wanted)
        rows = answer.get("data")
        if not isinstance(rows, list) or not rows:
            msg = "the server answered without a picture"
            raise ModelError(msg)
        pictures = [await self._picture(row) for row in rows]
        for number, picture in enumerate(pictures, 1):
            parts: list[Part] = []
            if target is not None:
                file = target if len(pictures) == 1 else target.with_stem(f"{target.stem}-{number}")
                await save(file, picture.data or b"")
                parts.append(Text(f"Written to {file.relative_to(self._workspace.resolve())} ({picture.media_type})."))
            if self._show or target is None:
                parts.append(picture)
            yield parts  # each for itself: what was written is told, also if a stop comes before the next

    async def _picture(self, row: object) -> Image:
        """One picture of an answer: inside of it, or at an address, which is then fetched like any other."""
        packed = row.get("b64_json") if isinstance(row, dict) else None
        url = row.get("url") if isinstance(row, dict) else None
        if isinstance(packed, str):
            try:
                data = base64.b64decode(packed, validate=True)
            except binascii.Error as error:
                msg = f"the server sent a picture that cannot be read: {error}"
                raise ModelError(msg) from error
        elif isinstance(url, str):
            data = (await self._fetch(self._results_net, url)).data or b""
        else:
            msg = "the server answered with neither b64_json nor url"
            raise ModelError(msg)
        return Image(data, media_type=_type_of(data))

    @tool
    async def vision_analyze(self, image: str, question: str, ctx: ToolContext) -> str:
        """Look at a picture and answer a question about it.

        Args:
            image: a file in the workspace, or the http(s) address of a picture
            question: what to find out
            ctx: the call

        """
        if image.lower().startswith(("http://", "https://")):
            picture = await self._fetch(self._net, image)
        else:
            file = inside(self._workspace, image)
            data = await run_blocking_async(read_bounded, file, _IMAGE_BYTES)
            picture = Image(data, media_type=_type_of(data))
        request = ModelRequest([UserMessage.of(question, picture)])
        exchange = Exchange(self._vision, request, token=ctx.token, emit=_Reporter(ctx).hear)
        try:
            return (await exchange.run()).text
        except (Cancelled, asyncio.CancelledError):
            if not ctx.token.is_cancelled or not exchange.answer.text:
                raise
            return exchange.answer.text  # what was said until the stop

    async def _fetch(self, net: Net, url: str) -> Image:
        got = await net.fetch(url, types=("image/*", "application/octet-stream"))
        if not got.is_ok:
            msg = f"{got.url} answered with status {got.status}"
            raise FetchError(msg)
        return Image(got.body, media_type=_type_of(got.body))


class _Reporter:
    """Tells now and then how much has been said."""

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx = ctx
        self._said = 0
        self._told = 0

    def hear(self, event: RequestEvent) -> None:
        if isinstance(event, TextDelta):
            self._said += len(event.text)
            if self._said - self._told >= _REPORT_EVERY:
                self._told = self._said
                self._ctx.report(f"{self._said:,} characters so far")


def _type_of(data: bytes) -> str:
    """What kind of picture this is, by its first bytes: names and headers are often wrong."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    msg = "this is not a picture that can be used; PNG, JPEG, GIF and WebP can be"
    raise ValueError(msg)
