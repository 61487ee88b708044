"""The endpoint for Prometheus answers to its own names, to few clients at once, and waits for none."""

import contextlib
import http.client
import socket
import time
from urllib.parse import urlsplit

import pytest

from gpubench.tools.monitor import endpoint


@pytest.fixture(scope="module")
def place():
    def page(openmetrics):
        return "power 100\n" + "# EOF\n" * openmetrics

    with endpoint.serve_page(("127.0.0.1", 0), page, ["GPU.example"], client_s=0.5) as url:
        yield "127.0.0.1", urlsplit(url).port


def status(place, *hosts, path="/metrics"):
    """Return the status that a request with these Host headers gets."""
    connection = http.client.HTTPConnection(*place, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    with contextlib.closing(connection):
        return connection.getresponse().status


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost.", socket.gethostname(), "gpu.example"])
def test_the_endpoint_answers_to_its_own_names(place, host):
    assert status(place, f"{host}:{place[1]}") == 200
    assert status(place, host, path="/other") == 404


@pytest.mark.parametrize(
    ("accept", "kind", "text"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", "power 100\n"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.2",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "power 100\n# EOF\n",
        ),
    ],
)
def test_a_client_gets_openmetrics_if_it_accepts_that(place, accept, kind, text):
    connection = http.client.HTTPConnection(*place, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Accept": accept})
        answer = connection.getresponse()
        assert (answer.headers["Content-Type"], answer.read().decode()) == (kind, text)


@pytest.mark.parametrize(
    "hosts", [["evil.example"], ["127.0.0.1.evil.example"], ["localhost", "evil.example"], [""], []]
)
def test_a_foreign_name_is_misdirected(place, hosts):
    """A page of another site whose name resolves to this address (DNS rebinding) gets nothing."""
    assert status(place, *hosts) == 421


@pytest.mark.parametrize(
    ("host", "reached", "answered"),
    [
        ("[::1]:9000", "::1", True),
        ("Host.Example:80", "10.0.0.1", True),
        ("[0:0:0:0:0:0:0:1]", "::1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.2", "10.0.0.1", False),
        ("", "10.0.0.1", False),
    ],
)
def test_names_are_read_with_and_without_a_port(host, reached, answered):
    assert endpoint.is_named([host], {"host.example", ""}, reached) == answered
    assert not endpoint.is_named([host, host], {"host.example", ""}, reached)


def test_a_client_that_sends_slowly_is_disconnected(place):
    started = time.monotonic()
    with socket.create_connection(place, timeout=10) as slow, contextlib.suppress(ConnectionError):
        while time.monotonic() - started < 8:
            slow.sendall(b"G")
            slow.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                assert slow.recv(1) == b""
                break
    assert time.monotonic() - started < 8


def test_clients_above_the_limit_are_disconnected_and_later_ones_are_answered(place):
    with contextlib.ExitStack() as several:
        idle = [several.enter_context(socket.create_connection(place, timeout=10)) for _ in range(24)]
        ended = [client.recv(1) for client in idle]
    assert ended == [b""] * 24
    assert retry_until_answered(lambda: status(place, "localhost")) == 200


def retry_until_answered(ask):
    """Repeat the request until it is answered: threads of disconnected clients end a moment later."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return ask()
        except ConnectionError:
            assert time.monotonic() < deadline
