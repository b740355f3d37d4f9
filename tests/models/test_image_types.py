"""Images are sent with the type that they have, whatever they are said to be."""

from __future__ import annotations

import msgspec
import pytest

from halter.models import AssistantMessage, Image, ModelRequest, Text, ToolCall, ToolMessage, UserMessage
from halter.models.image_types import sendable
from tests.support.wires import MODELS, PNG, WIRES

JPEG = b"\xff\xd8\xff\xe0JFIF"
CALL = ToolCall("c1", "shoot", "{}")


def written(wire: str, *parts: Image) -> str:
    """The body of a request in which a tool has returned these images."""
    kind, path = MODELS[wire]
    model = kind("m", base_url=f"http://127.0.0.1{path}", api_key="k")
    request = ModelRequest([UserMessage.of("x"), AssistantMessage("", [CALL]), ToolMessage.of(CALL, *parts)])
    return msgspec.json.encode(model.body(request)).decode()


@pytest.mark.parametrize("wire", WIRES)
def test_an_image_is_sent_with_its_real_type(wire: str) -> None:
    """A JPEG that a tool returned as `Image(data)` was sent as a PNG, and every later request of it was refused."""
    body = written(wire, Image(JPEG))
    assert "image/jpeg" in body
    assert "image/png" not in body


@pytest.mark.parametrize("wire", WIRES)
def test_an_image_of_another_kind_is_text(wire: str) -> None:
    """An SVG made the provider refuse its conversation for good; the model is told about it instead."""
    body = written(wire, Image(b"<svg/>", media_type="image/svg+xml"), Image(PNG))
    assert "[an image (image/svg+xml) that models do not take]" in body
    assert body.count("image/png") == 1


def test_gemini_accepts_more() -> None:
    """Photos of phones are often HEIC, which Gemini reads; no other API does."""
    photo = Image(b"\0\0\0\x18ftypheic", media_type="image/heic")
    assert '"mimeType":"image/heic"' in written("gemini", photo)
    assert isinstance(sendable(photo), Text)


def test_an_address_is_sent_as_it_is() -> None:
    """The provider fetches it, so nothing is known about it here."""
    image = Image(url="https://example.com/a.svg")
    assert sendable(image) is image
