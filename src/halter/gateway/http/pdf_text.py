"""The text of a PDF that a user attaches, read in a process of its own with limits of time, memory, pages and text."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import msgspec

from halter._extras import need
from halter.cancel.processes.run import run_process
from halter.gateway.http.errors import Problem
from halter.gateway.http.session_schemas import PdfText

__all__ = ["PdfReader"]

_WORKER: Final = Path(__file__).with_name("pdf_worker.py")
_MAX_PARALLEL: Final = 2
_MAX_OUTPUT: Final = 8_000_000  # bytes: a character can take twelve in JSON
_TIMEOUT: Final = 20  # seconds


class _WorkerResult(msgspec.Struct):
    text: str = ""
    pages: int = 0
    is_cut: bool = False
    error: str = ""


class PdfReader:
    """Reads PDFs, a few at a time; others wait."""

    def __init__(self, seconds: int = _TIMEOUT) -> None:
        self._seconds = seconds
        self._free = asyncio.Semaphore(_MAX_PARALLEL)

    async def read(self, data: bytes) -> PdfText:
        """The text of a PDF. Raises `Problem`, also if pypdf is not installed."""
        try:
            need("pdf", "pypdf")
        except ImportError as error:
            raise Problem(501, f"PDFs cannot be read here; {error}", kind="not-installed") from error
        command = [sys.executable, "-P", str(_WORKER), str(self._seconds)]
        async with self._free:
            ended = await run_process(command, input=data, timeout=self._seconds + 1, grace=0.0, max_output=_MAX_OUTPUT)
        if ended.cancelled or (ended.returncode or 0) < 0:  # killed, by us or by its own limits
            raise Problem(422, "reading this PDF takes too long", field="body", kind="pdf")
        if ended.returncode:
            raise Problem(422, "this PDF cannot be read", field="body", kind="pdf")
        result = msgspec.json.decode(ended.stdout, type=_WorkerResult)
        if result.error:
            raise Problem(422, result.error, field="body", kind="pdf")
        return PdfText(text=result.text, pages=result.pages, is_cut=result.is_cut)
