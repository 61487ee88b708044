"""Serve one page for Prometheus over HTTP, by default only to this machine.

A web page in a browser on this machine could reach the endpoint under another host name (DNS rebinding), so it answers
only to the machine's own names. The number and the duration of connections are limited."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpubench.base.errors import UsageError
from gpubench.model import Device
from gpubench.tools.monitor.live import Latest, prometheus

_PAGE = "/metrics"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"
_CLIENT_S = 10.0  # longest time for a request and its answer; Prometheus waits 10 s for an answer by default
_MOST_CLIENTS = 16  # clients at once; a Prometheus server scrapes with one


@contextlib.contextmanager
def serve_counters(
    address_and_port: tuple[str, int],
    latest: Latest,
    devices: Mapping[str, Device],
    names: Collection[str] = (),
    client_s: float = _CLIENT_S,
) -> Iterator[str]:
    """Serve the counters at an address and port (0 chooses a free port) during the context, and yield the URL.

    `latest` has the values, and `devices` the devices by id."""
    own_names = {
        "localhost",
        socket.gethostname().lower(),
        address_and_port[0].lower(),
        *(name.lower() for name in names),
    }
    try:
        server = _Server(address_and_port, own_names, lambda: prometheus(latest, devices), client_s)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {address_and_port[0]}:{address_and_port[1]}: {error.strerror or error}"
        ) from error
    with server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": min(0.5, client_s / 8)}, daemon=True
        )
        thread.start()
        host, port = server.server_address[:2]
        address = f"[{host!s}]" if ":" in str(host) else str(host)
        try:
            yield f"http://{address}:{port}{_PAGE}"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    """A server with one thread per client, a limit on clients, and a deadline for each request.

    `own_names` are the names, in lower case, to which it answers. `page` returns the text to serve."""

    daemon_threads = True
    request_queue_size = 2 * _MOST_CLIENTS  # refused clients are accepted first, to be disconnected at once

    def __init__(
        self, address_and_port: tuple[str, int], own_names: Collection[str], page: Callable[[], str], client_s: float
    ) -> None:
        """Listen at an address and port (0 chooses a free port); raises OSError if that fails."""
        self.address_family = socket.AF_INET6 if ":" in address_and_port[0] else socket.AF_INET
        self.own_names = frozenset(own_names)
        self.page = page
        self._client_s = client_s
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__(address_and_port, _Handler)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Answer the client in a new thread; disconnect it at once if 16 other clients are connected."""
        with self._lock:
            is_full = len(self._deadlines) >= _MOST_CLIENTS
            if not is_full:
                self._deadlines[request] = time.monotonic() + self._client_s
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """Disconnect a client."""
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect each client whose time is over; this wakes the thread that waits for the client."""
        now = time.monotonic()
        with self._lock:
            for request, deadline in self._deadlines.items():
                if now > deadline:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *details: object) -> None:
        """Ignore errors of clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of a client."""

    server: _Server
    server_version, sys_version = "gpubench", ""

    def do_GET(self) -> None:
        """Answer with the counters; with 404 for another path, 421 for a host name that is not this machine's."""
        if not self._names_this_machine():
            self._send_text(HTTPStatus.MISDIRECTED_REQUEST, "this is not a name of this machine: see --host-name\n")
        elif self.path.partition("?")[0] != _PAGE:
            self._send_text(HTTPStatus.NOT_FOUND, f"the counters are at {_PAGE}\n")
        else:
            self._send_text(HTTPStatus.OK, self.server.page(), _METRICS_TYPE)

    def _names_this_machine(self) -> bool:
        """Return whether the request has one Host header, with a name or an address of this machine."""
        hosts = self.headers.get_all("Host", [])
        if not hosts:
            return self.request_version == "HTTP/1.0"
        return len(hosts) == 1 and self._is_own_name(_name_in(hosts[0]))

    def _is_own_name(self, name: str) -> bool:
        """Return whether a name is one of this machine's, or the address that the client has reached."""
        return name in self.server.own_names or _same_address(name, str(self.connection.getsockname()[0]))

    def _send_text(self, status: HTTPStatus, text: str, content_type: str = _TEXT_TYPE) -> None:
        """Send a whole answer: the status, the headers, and `text` as its body."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *details: object) -> None:
        """Print no line per request."""


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, in lower case and without its port: `[::1]:9000` gives `::1`."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _same_address(name: str, address: str) -> bool:
    """Return whether `name` is the IP address `address`, however both are spelled."""
    try:
        reached = ipaddress.ip_address(address.partition("%")[0])
        named = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return named == reached or (isinstance(reached, ipaddress.IPv6Address) and reached.ipv4_mapped == named)
