"""Serve one page for Prometheus over HTTP, by default only to this machine.

A web page in a browser on this machine could reach the endpoint under another host name (DNS rebinding), so it answers
only to the machine's own names. The number and the duration of connections are limited."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpubench.base.errors import UsageError

_PAGE = "/metrics"
_OPENMETRICS = "application/openmetrics-text"
_CLIENT_S = 10.0  # longest time for a request and its answer; Prometheus waits 10 s for an answer by default
_MOST_CLIENTS = 16  # clients at once; a Prometheus server scrapes with one


@contextlib.contextmanager
def serve_page(
    place: tuple[str, int], page: Callable[[bool], str], names: Collection[str] = (), client_s: float = _CLIENT_S
) -> Iterator[str]:
    """Serve the text of `page` at an address and port (0: a free one) to the machine's own names and `names`.

    `page` is called with whether the client wants OpenMetrics."""
    own_names = {name.lower() for name in ("localhost", socket.gethostname(), place[0], *names)}
    try:
        server = _Server(place, own_names, page, client_s)
    except OSError as error:
        raise UsageError(f"cannot listen on {place[0]}:{place[1]}: {error.strerror or error}") from error
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(min(0.5, client_s / 8),), daemon=True)
        thread.start()
        host, port = server.server_address[:2]
        try:
            yield f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}{_PAGE}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    """A server with one thread per client, a limit on clients, and a deadline for each request."""

    daemon_threads = True
    request_queue_size = 2 * _MOST_CLIENTS  # refused clients are accepted first, to be disconnected at once

    def __init__(self, place: tuple[str, int], names: set[str], page: Callable[[bool], str], client_s: float) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self.names, self.page, self._client_s = names, page, client_s
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__(place, _Handler)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Answer the client in a new thread; disconnect it at once if 16 other clients are connected."""
        with self._lock:
            if has_room := len(self._deadlines) < _MOST_CLIENTS:
                self._deadlines[request] = time.monotonic() + self._client_s
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect each client whose time is over; this wakes the thread that waits for the client."""
        with self._lock:
            for request in (client for client, deadline in self._deadlines.items() if time.monotonic() > deadline):
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *details: object) -> None:
        """Ignore errors of clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "gpubench", ""

    def do_GET(self) -> None:
        """Answer with the page; with 404 for another path, 421 for a host name that is not this machine's."""
        hosts = self.headers.get_all("Host") or ["localhost"] * (self.request_version == "HTTP/1.0")
        status, text, kind = HTTPStatus.NOT_FOUND, f"the counters are at {_PAGE}\n", "text/plain"
        if not is_named(hosts, self.server.names, str(self.connection.getsockname()[0])):
            status, text = HTTPStatus.MISDIRECTED_REQUEST, "this is not a name of this machine: see --host-name\n"
        elif self.path.partition("?")[0] == _PAGE:
            wanted = _OPENMETRICS in self.headers.get("Accept", "")
            kind = f"{_OPENMETRICS}; version=1.0.0" if wanted else "text/plain; version=0.0.4"
            status, text = HTTPStatus.OK, self.server.page(wanted)
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *details: object) -> None:
        """Print no line per request."""


def is_named(hosts: Sequence[str], names: Collection[str], reached: str) -> bool:
    """Return whether the one Host header has one of these names, or the address `reached`, however that is spelled."""
    host = hosts[0].strip().lower() if len(hosts) == 1 else ""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].removesuffix(".")
    with contextlib.suppress(ValueError):
        address, named = (ipaddress.ip_address(text.partition("%")[0]) for text in (reached, name))
        if named in (address, getattr(address, "ipv4_mapped", None)):
            return True
    return bool(name) and name in names
