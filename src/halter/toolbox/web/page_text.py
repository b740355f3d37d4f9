"""The text of a fetched page, as Markdown. Runs in a worker process: parsing blocks, and may take very long."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["HTML", "PLAIN", "Page", "page_of"]

HTML: Final = ("text/html", "application/xhtml+xml")
PLAIN: Final = (
    "text/plain",
    "text/markdown",
    "text/csv",
    "text/xml",
    "application/json",
    "application/ld+json",
    "application/xml",
    "application/rss+xml",
    "application/atom+xml",
    "application/yaml",
    "text/yaml",
    "text/css",
    "text/javascript",
    "application/javascript",
)


class Page(Struct, frozen=True):
    """A page that was read."""

    title: str
    text: str


def page_of(html: str | bytes, url: str) -> Page:
    """Find the title and the main text of a page; if there is no main text, all of its text.

    Of bytes it finds out the encoding by itself.
    """
    import trafilatura

    text = trafilatura.extract(
        html, url=url, output_format="markdown", include_links=True, include_tables=True, include_comments=False
    )
    metadata = trafilatura.extract_metadata(html, default_url=url)
    title = getattr(metadata, "title", None) or ""
    return Page(str(title), text or trafilatura.html2txt(html) or "")
