"""Generating and analyzing images, with models behind OpenAI-compatible servers.

    agent = Agent(model, Media(workspace="work", vision="gpt-5").tools)

A stop closes the request. An image is written completely or not at all; of an answer about an image a stop keeps the
part so far.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import Cancelled
from halter.models.errors import ModelError
from halter.models.http.endpoint import Endpoint
from halter.models.image_types import image_type
from halter.models.model_call import ModelCall
from halter.models.openai.chat import OpenAIModel
from halter.models.types import Image, ModelRequest, Part, Text, TextDelta, UserMessage
from halter.toolbox.files.media import read_file, save_file
from halter.toolbox.files.workspace import Workspace
from halter.toolbox.http.addresses import server_of
from halter.toolbox.http.fetch import FetchError, Net
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Mapping

    from halter.events.requests import RequestEvent
    from halter.models.types import Model

__all__ = ["Media"]

_MAX_BYTES: Final = 20_000_000  # of an image
_MAX_IMAGES: Final = 4
_REPORT_INTERVAL: Final = 200  # characters


class Media:
    """Tools that generate and analyze images.

    *base_url* and *api_key* are those of the server, without which the environment's OPENAI_BASE_URL and OPENAI_API_KEY
    hold. *vision* is a model, or the name of one on that server. *extra* is added to requests for images.
    *show* says whether the agent's own model is shown the generated images, and not only told their file names.
    """

    def __init__(  # noqa: PLR0913  (each is the user's to set, and all have a default)
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        workspace: str | os.PathLike[str] = ".",
        image_model: str = "gpt-image-1",
        vision: Model | str = "gpt-5-mini",
        net: Net | None = None,
        extra: Mapping[str, Any] | None = None,
        show: bool = True,
        timeout: float = 300.0,
    ) -> None:
        self._endpoint = Endpoint(base_url, api_key, timeout=timeout)
        self._workspace = Workspace(workspace)
        self._image_model = image_model
        self._vision = OpenAIModel(vision, base_url=base_url, api_key=api_key) if isinstance(vision, str) else vision
        self._net = Net(max_bytes=_MAX_BYTES) if net is None else net
        self._results_net = Net(max_bytes=_MAX_BYTES, allow=[server_of(self._endpoint.base_url)])
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
        """Generate an image from a description.

        Args:
            prompt: a detailed description of the image
            ctx: the call
            size: width and height, such as 1024x1024, or auto
            path: the file in the workspace to write to; several images are numbered
            count: the number of images, 1 to 4

        """
        count = min(max(count, 1), _MAX_IMAGES)
        if path:
            self._workspace.check(path)
        ctx.report("waiting for the image")
        wanted = {"model": self._image_model, "prompt": prompt, "n": count, "size": size, **self._extra}
        answer = await self._endpoint.post_json("/images/generations", wanted)
        rows = answer.get("data")
        if not isinstance(rows, list) or not rows:
            raise ModelError("the server returned no image")
        pictures = [await self._picture(row) for row in rows]
        for number, picture in enumerate(pictures, 1):
            parts: list[Part] = []
            if path:
                file = PurePosixPath(path)
                name = path if len(pictures) == 1 else str(file.with_stem(f"{file.stem}-{number}"))
                written = await save_file(self._workspace, name, picture.data or b"")
                parts.append(Text(f"Written to {written} ({picture.media_type})."))
            if self._show or not path:
                parts.append(picture)
            yield parts  # one by one: after a stop, the result has those that were written

    async def _picture(self, row: object) -> Image:
        """One picture of an answer: inside of it, or at an address, which is then fetched like any other."""
        packed = row.get("b64_json") if isinstance(row, dict) else None
        url = row.get("url") if isinstance(row, dict) else None
        if isinstance(packed, str):
            try:
                data = base64.b64decode(packed, validate=True)
            except binascii.Error as error:
                raise ModelError(f"the server returned an image that cannot be decoded: {error}") from error
        elif isinstance(url, str):
            data = (await self._fetch(self._results_net, url)).data or b""
        else:
            raise ModelError("the server returned neither b64_json nor url")
        return _image(data)

    @tool
    async def vision_analyze(self, image: str, question: str, ctx: ToolContext) -> str:
        """Look at an image and answer a question about it.

        Args:
            image: a file in the workspace, or the URL of an image
            question: the question about the image
            ctx: the call

        """
        if image.lower().startswith(("http://", "https://")):
            picture = await self._fetch(self._net, image)
        else:
            picture = _image(await run_blocking_async(read_file, self._workspace, image, _MAX_BYTES))
        request = ModelRequest([UserMessage.of(question, picture)])
        call = ModelCall(self._vision, request, token=ctx.token, emit=_Reporter(ctx).on_event)
        try:
            return (await call.run()).text
        except (Cancelled, asyncio.CancelledError):
            if not ctx.token.is_cancelled or not call.answer.text:
                raise
            return call.answer.text  # the part before the stop

    async def _fetch(self, net: Net, url: str) -> Image:
        got = await net.fetch(url, types=("image/*", "application/octet-stream"))
        if not got.is_ok:
            raise FetchError(f"{got.url} answered with status {got.status}")
        return _image(got.body)


class _Reporter:
    """Reports from time to time how long the answer is."""

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx = ctx
        self._length = 0
        self._reported = 0

    def on_event(self, event: RequestEvent) -> None:
        if isinstance(event, TextDelta):
            self._length += len(event.text)
            if self._length - self._reported >= _REPORT_INTERVAL:
                self._reported = self._length
                self._ctx.report(f"{self._length:,} characters so far")


def _image(data: bytes) -> Image:
    media_type = image_type(data)
    if not media_type:
        raise ValueError("not a supported image; PNG, JPEG, GIF and WebP are supported")
    return Image(data, media_type=media_type)
