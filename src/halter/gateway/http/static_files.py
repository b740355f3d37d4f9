"""The files of the web page, read once, and sent with headers that restrict what the page may do.

`/` is `web/index.html`; the other files of that folder are at `/page/NAME`. `main.js` and `styles.css` are sent with
everything that they import.
"""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

from halter.gateway.http.errors import Problem
from halter.gateway.http.page_bundle import bundle_script, bundle_styles

__all__ = ["StaticFiles"]

_FOLDER: Final = Path(__file__).parent.parent / "web"
_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "media-src 'self' data: blob:",
    "font-src 'self'",
    "connect-src 'self'",
    "manifest-src 'self'",
    "worker-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "Cache-Control": "no-cache",  # that is: ask whether it has changed
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES: Final = {".js": "text/javascript", ".mjs": "text/javascript", ".webmanifest": "application/manifest+json"}
_BUNDLES: Final = {"main.js": bundle_script, "styles.css": bundle_styles}


class _StaticFile(NamedTuple):
    data: bytes
    kind: str
    tag: str


class StaticFiles:
    """The files of the web page."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        for name, bundle in _BUNDLES.items():
            if name in files:
                sources = {
                    each: data.decode() for each, data in files.items() if each.endswith(name[name.index(".") :])
                }
                files[name] = bundle(sources, name).encode()
        self._files = {name: _file(name, data) for name, data in files.items()}

    def response(self, request: web.Request, name: str) -> web.Response:
        """One of the files; 304 if the browser has it."""
        file = self._files.get(name)
        if file is None:
            raise Problem(404, "there is no such file", kind="not-found")
        headers = _HEADERS | {"ETag": f'"{file.tag}"'}
        known = request.if_none_match or ()
        if any(each.value in (file.tag, "*") for each in known):
            return web.Response(status=304, headers=headers)
        charset = "utf-8" if file.kind.startswith("text/") or file.kind.endswith(("json", "svg+xml")) else None
        return web.Response(body=file.data, headers=headers, content_type=file.kind, charset=charset)


def _file(name: str, data: bytes) -> _StaticFile:
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _StaticFile(data, kind, hashlib.sha256(data).hexdigest()[:32])
