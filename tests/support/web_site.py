"""A small web site for the browser's tests: pages that answer, that hang, that never end, and that hang the browser."""

from __future__ import annotations

import http.server
import ssl
import threading
from typing import Any

HOME = """<!doctype html><title>Home</title><h1>Welcome</h1>
<a href="/two">the second page</a>
<form action="/found"><input name="q" aria-label="search"></form>
<button onclick="console.log('pressed'); document.querySelector('h1').textContent = 'Pressed'">press me</button>
<button onclick="alert('hello there')">alert</button>
<button onclick="window.open('/two')">window</button>
<button onclick="this.nextElementSibling.remove()">remove</button><button>removable</button>
<button id="late" disabled onclick="fetch('/clicked')">not yet</button>
<div style="height: 3000px"></div>
<script>console.warn('mind the gap')</script>"""

# The server hears of it before the page hangs: that is the moment to wait for.
WEDGE = """setTimeout(() => {
  const request = new XMLHttpRequest(); request.open('GET', '/wedged', false); request.send(); while (true) {}
}, 0), 1"""


class Site:
    """The server, on this machine."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.pages = {"/": HOME, "/two": "<title>Two</title><p>the second page's text</p>"}
        self.seen: list[str] = []
        self.over = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"{'http' if context is None else 'https'}://{self.host}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.seen.append(path)
        if path == "/hang" or (path == "/hang-again" and self.seen.count(path) > 1):
            self.over.wait(120)
            handler.close_connection = True
            return
        if path == "/drop":
            handler.close_connection = True
            return
        if path.startswith("/to/"):
            handler.send_response(302)
            handler.send_header("Location", f"http://{path.removeprefix('/to/')}/")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        body = self.pages.get(path, f"<title>{path}</title><p>at {handler.path}</p>").encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html; charset=utf-8")
        handler.send_header("Cache-Control", "no-store")
        handler.send_header("Content-Length", str(len(body) + (1 if path == "/endless" else 0)))
        handler.end_headers()
        handler.wfile.write(body)
        if path == "/endless":
            handler.wfile.flush()
            self.over.wait(120)
            handler.close_connection = True

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
