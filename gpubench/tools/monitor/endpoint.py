"""An HTTP endpoint for Prometheus: one page, on this machine alone unless told otherwise."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpubench.base.errors import UsageError
from gpubench.model import Device
from gpubench.tools.monitor.live import Latest, prometheus

_PAGE = "/metrics"
_KIND = "text/plain; version=0.0.4; charset=utf-8"
_CLIENT_S = 10.0  # a client that sends nothing is let go


@contextlib.contextmanager
def served(place: tuple[str, int], latest: Latest, devices: Mapping[str, Device]) -> Iterator[str]:
    """Serve the counters at an address and port (0: any that is free); yields the URL. UsageError where it is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_S

        def do_GET(self) -> None:
            """The page, or 404."""
            found = self.path.partition("?")[0] == _PAGE
            body = prometheus(latest, devices).encode() if found else f"the counters are at {_PAGE}\n".encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", _KIND if found else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """No line a request."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        daemon_threads = True

        def handle_error(self, *words: object) -> None:
            """A client that goes away is no matter of ours."""

    try:
        server = Server(place, Handler)
    except OSError as error:
        raise UsageError(f"cannot listen on {place[0]}:{place[1]}: {error.strerror or error}") from error
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        host, port = server.server_address[:2]
        address = f"[{host!s}]" if ":" in str(host) else str(host)
        try:
            yield f"http://{address}:{port}{_PAGE}"
        finally:
            server.shutdown()
            thread.join()
