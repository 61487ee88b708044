"""The smallest forwarder of a driver's calls: every call arrives once and in order, and faults are found."""

import socket
import threading

import numpy as np
import pytest
from _host_driver import HostDriver
from _modules import suite_modules
from test_virtual_memory import host_bench

from gpubench.base.errors import WrongAnswer

FORWARD, WIRE = suite_modules("virtual", "_calls", "_wire")


class TwoRankExchange:
    """Two ranks in two threads of this process, which exchange values."""

    def __init__(self):
        self._barrier, self._values = threading.Barrier(2), [None, None]

    def of(self, rank):
        """Return the bench of one of the two ranks."""

        def exchange(value):
            self._values[rank] = value
            self._barrier.wait(10)
            values = list(self._values)
            self._barrier.wait(10)
            return values

        bench = host_bench()
        bench.rank, bench.world, bench.exchange = rank, 2, exchange
        return bench


def connected(transport, change=lambda table: None, delay_us=0):
    """Return a client, and a server whose table of calls is changed."""
    meeting, served = TwoRankExchange(), []

    def serve():
        bench = meeting.of(1)
        driver = HostDriver()
        change(driver.table)
        served.append(FORWARD.ForwardServer(bench, driver, FORWARD._connected(bench, transport), delay_us))

    thread = threading.Thread(target=serve)
    thread.start()
    client = FORWARD.ForwardClient(FORWARD._connected(meeting.of(0), transport))
    thread.join(10)
    return client, served[0]


@pytest.fixture(params=FORWARD.TRANSPORTS)
def connected_client(request):
    """Yield a client that is connected to a server, and end both."""
    client, server = connected(request.param)
    yield client
    client.close()
    server.close()
    assert not server._thread.is_alive()


@pytest.mark.parametrize("is_posted", [False, True])
def test_every_launch_reaches_the_device_once(connected_client, is_posted):
    calls = FORWARD.ForwardedCalls(connected_client, "launch", is_posted)
    for _ in range(2):
        assert 0 < calls.seconds() < 10
        calls.check()
    assert calls._launched == 512


@pytest.mark.parametrize("size", [1, 2**22, 13 * 2**20 + 3])
def test_data_of_any_number_of_buffers_arrive_whole_in_both_directions(connected_client, size):
    sent = np.random.default_rng(1).integers(256, size=size, dtype=np.uint8)
    place = connected_client.request(WIRE.ALLOCATE, sent.size)
    connected_client.move(True, place, sent)
    back = np.zeros_like(sent)
    connected_client.move(False, place, back)
    assert np.array_equal(sent, back)
    connected_client.request(WIRE.FREE, place)


def test_the_error_of_a_call_is_returned_with_its_answer(connected_client):
    with pytest.raises(WrongAnswer, match="a forwarded call returned the error 2"):
        connected_client.request(WIRE.ALLOCATE, 2**62)
    assert connected_client.request(WIRE.MEMORY_INFO) > 0  # the next call is not to blame


def test_a_launch_that_is_dropped_is_found():
    client, server = connected("unix", lambda table: table.__setitem__(WIRE.LAUNCH, table[WIRE.SYNCHRONIZE]))
    calls = FORWARD.ForwardedCalls(client, "launch", True)
    calls.seconds()
    with pytest.raises(WrongAnswer, match="0 of 256 launches reached the device"):
        calls.check()
    client.close()
    server.close()


def test_a_copy_that_does_not_arrive_is_found():
    client, server = connected("unix", lambda table: table.__setitem__(WIRE.TO_DEVICE, table[WIRE.SYNCHRONIZE]))
    copies = FORWARD.ForwardedCopies(host_bench(), client, "h2d", 4096)
    copies.poison()
    copies.call()
    with pytest.raises(WrongAnswer, match="of 4096 forwarded bytes are wrong"):
        copies.check()
    client.close()
    server.close()


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_copies_overwrite_what_was_there_before(direction):
    client, server = connected("unix")
    copies = FORWARD.ForwardedCopies(host_bench(), client, direction, 4096)
    for _ in range(2):
        copies.poison()
        with pytest.raises(WrongAnswer):  # nothing is copied
            copies.check()
        copies.call()
        copies.check()
    client.close()
    server.close()


def test_an_answer_is_late_by_the_delay_and_a_posted_call_is_not():
    client, server = connected("unix", delay_us=2000)
    calls = [FORWARD.ForwardedCalls(client, "launch", is_posted) for is_posted in (False, True)]
    waiting, posted = (each.seconds() for each in calls)
    assert waiting > 256 * 2e-3 > posted > 2e-3
    for each in calls:
        each._launched = 256
        each.check()
    client.close()
    server.close()


def test_each_end_finds_that_the_other_has_gone():
    client, server = connected("unix")
    server._link.shutdown(socket.SHUT_RDWR)
    server._thread.join(10)
    assert not server._thread.is_alive()
    with pytest.raises(WrongAnswer, match="the forwarder's server is gone"):
        client.request(WIRE.MEMORY_INFO)
    client.close()
    server.close()
