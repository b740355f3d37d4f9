"""A program of its own: reads a PDF from its input, and writes its text as JSON.

The file is untrusted, and may be crafted to use up time and memory. So it is read in a process that the system limits,
and that the gateway kills after a time limit. It imports nothing of Halter.
"""

from __future__ import annotations

import io
import json
import logging
import resource
import sys

_MEMORY = 1_000_000_000  # bytes
_MAX_PAGES = 300
_MAX_TEXT = 200_000  # characters, as for a text file


def main() -> None:
    """Write `{"text", "pages", "is_cut"}`, or `{"error"}`. A boundary: a broken file can raise anything."""
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    logging.disable()  # pypdf logs every irregularity of a file
    try:
        result: dict[str, object] = read_text(sys.stdin.buffer.read())
    except MemoryError:
        result = {"error": "reading it takes too much memory"}
    except Exception as error:  # noqa: BLE001
        result = {"error": f"it cannot be read as a PDF ({type(error).__name__})"}
    sys.stdout.write(json.dumps(result))


def read_text(data: bytes) -> dict[str, object]:
    """The text of the pages, until there is enough."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "it is encrypted"}
    texts: list[str] = []
    length = 0
    pages = len(reader.pages)
    for page in reader.pages[:_MAX_PAGES]:
        text = page.extract_text().strip()
        texts.append(text)
        length += len(text) + 2
        if length > _MAX_TEXT:
            break
    full_text = "\n\n".join(filter(None, texts))
    # Broken fonts yield halves of surrogate pairs: pairs become characters, and JSON cannot have the others.
    full_text = full_text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if not full_text:
        return {"error": "it contains no text; it may be scanned. Attach its pages as pictures"}
    return {"text": full_text[:_MAX_TEXT], "pages": pages, "is_cut": len(texts) < pages or len(full_text) > _MAX_TEXT}


if __name__ == "__main__":
    main()
