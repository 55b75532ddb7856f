"""A reverse proxy that puts a server below a prefix, as companies do: `/tools/ml/docs` → `/docs`."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["PREFIX", "below_a_prefix"]

PREFIX = "/tools/ml"
_OWN = frozenset(("connection", "keep-alive", "transfer-encoding", "server", "date"))


@contextlib.contextmanager
def below_a_prefix(port: int) -> Iterator[str]:
    """The URL, without a slash at its end, below which the server on that port is to be found."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream = http.client.HTTPConnection("127.0.0.1", port)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
            upstream.request(self.command, self.path.removeprefix(PREFIX), body, headers)
            reply = upstream.getresponse()
            self.send_response_only(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            with contextlib.suppress(OSError), contextlib.closing(upstream):
                while part := reply.read1(1 << 16):  # as it comes: events too
                    self.wfile.write(part)
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = forward  # noqa: N815 (the names that its class asks for)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}{PREFIX}"
        finally:
            proxy.shutdown()
            thread.join()
