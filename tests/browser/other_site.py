"""A site of somebody else's, on another port of this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["OtherSite", "other_site"]


@dataclass(eq=False)
class OtherSite:
    """port: its own. pages: HTML by path; they may do whatever a browser lets them."""

    port: int
    pages: dict[str, str] = field(default_factory=lambda: {"/": "<!doctype html><title>elsewhere</title>"})
    asked: list[str] = field(default_factory=list)

    @property
    def same_site(self) -> str:
        """Its URL as a neighbour on the same host name: cookies know no ports."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def cross_site(self) -> str:
        """Its URL under another name."""
        return f"http://localhost:{self.port}"


@contextlib.contextmanager
def other_site() -> Iterator[OtherSite]:
    """It runs for the length of a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            body = site.pages.get(self.path.partition("?")[0], "").encode()
            self.send_response(200 if body else 204)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        site = OtherSite(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
