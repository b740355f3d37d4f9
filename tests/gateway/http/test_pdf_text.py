"""The text of PDFs, over HTTP, and what a file from outside cannot do: `halter.gateway.http.pdf_text`."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from pypdf import PdfReader as Reader
from pypdf import PdfWriter
from pypdf.generic import NameObject, StreamObject

from halter.gateway.http import pdf_text
from halter.gateway.http.errors import Problem
from halter.gateway.http.pdf_text import PdfReader
from halter.gateway.sessions.limits import GatewayLimits
from tests.support.gateway_client import Answer, Client, gateway_of
from tests.support.looped import looped
from tests.support.pdf import pdf_of, pdf_of_content


async def _ask(client: Client, data: bytes, kind: str = "application/pdf") -> Answer:
    return await client.ask("POST", "/v1/pdf", data=data, headers={"Content-Type": kind})


@looped
async def test_the_text_of_all_pages_is_read() -> None:
    """Page after page, with an empty line between two."""
    async with gateway_of() as (_, client):
        answer = await _ask(client, pdf_of("One page.", "", "Another."))
        assert answer.body == {"text": "One page.\n\nAnother.", "pages": 3, "is_cut": False}


@looped
async def test_what_cannot_be_read_is_told() -> None:
    """A broken file, an encrypted one, one without text, and one of another kind: each is refused with its reason."""
    writer = PdfWriter(clone_from=Reader(io.BytesIO(pdf_of("Secret."))))
    writer.encrypt("word", algorithm="RC4-128")
    sealed = io.BytesIO()
    writer.write(sealed)
    refused: list[tuple[bytes, str, int, str]] = [
        (b"%PDF-1.4 and no more", "application/pdf", 422, "cannot be read as a PDF"),
        (sealed.getvalue(), "application/pdf", 422, "encrypted"),
        (pdf_of(""), "application/pdf", 422, "it contains no text"),
        (pdf_of("One."), "text/plain", 415, "send application/pdf"),
    ]
    async with gateway_of() as (_, client):
        for data, kind, status, why in refused:
            answer = await _ask(client, data, kind)
            assert (answer.status, why in answer.body["detail"]) == (status, True), answer
    async with gateway_of(limits=GatewayLimits(upload=500)) as (_, client):
        assert (await _ask(client, pdf_of("Long. " * 1_000, "Long. " * 999))).status == 413


@looped
async def test_half_a_character_in_a_pdf_is_replaced() -> None:
    """A font with a broken table of characters gave half of a surrogate pair, and the answer was an internal error."""
    table = b"begincmap 1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfchar <41> <D835> endbfchar endcmap"
    data = pdf_of_content(b"BT /F1 12 Tf 72 720 Td (BAB) Tj ET")
    writer = PdfWriter(clone_from=Reader(io.BytesIO(data)))
    stream = StreamObject()
    stream.set_data(table)
    fonts = writer.pages[0]["/Resources"]["/Font"]  # type: ignore[index]
    fonts["/F1"].get_object()[NameObject("/ToUnicode")] = writer._add_object(stream)
    broken = io.BytesIO()
    writer.write(broken)
    async with gateway_of() as (_, client):
        answer = await _ask(client, broken.getvalue())
        assert (answer.status, answer.body["text"]) == (200, "B\N{REPLACEMENT CHARACTER}B")


@looped
async def test_a_long_pdf_is_cut() -> None:
    """Neither many pages nor much text comes back without a limit, and the answer says that there is more."""
    reader = PdfReader()
    many = await reader.read(pdf_of(*(f"Page {number}." for number in range(310))))
    assert (many.pages, many.is_cut, "Page 299." in many.text, "Page 300." in many.text) == (310, True, True, False)
    much = await reader.read(pdf_of("word " * 50_000, "end"))
    assert (len(much.text), much.is_cut) == (200_000, True)


@looped
async def test_a_pdf_that_takes_too_long_is_given_up() -> None:
    """A page that takes minutes ends with the time that its process has, and the process with it."""
    page = b"BT /F1 12 Tf 72 720 Td " + b"(a) Tj " * 5_000_000 + b"ET"
    with pytest.raises(Problem, match="takes too long"):
        await PdfReader(seconds=1).read(pdf_of_content(page))


@looped
async def test_without_the_extra_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer names the package that is missing, and the command that installs it."""
    missing: Any = None
    monkeypatch.setitem(sys.modules, "pypdf", missing)
    async with gateway_of() as (_, client):
        answer = await _ask(client, pdf_of("One."))
        assert answer.status == 501
        assert "not installed: pypdf" in answer.body["detail"]
        assert "pip install 'halter[pdf]'" in answer.body["detail"]


def test_the_program_that_reads_imports_nothing_of_ours() -> None:
    """It starts fast, and what a file may make it do finds no part of the gateway in its process."""
    assert "halter" not in pdf_text._WORKER.read_text().partition('"""')[2].partition('"""')[2]
