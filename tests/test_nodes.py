"""Ranks on several nodes: real runner processes over 127.0.0.1, and intruders and faulty nodes."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gpubench.base.errors import SuiteError, UsageError
from gpubench.measuring import nodes, plain
from gpubench.measuring.channel import LIMIT_BYTES, BadMessage, NodeChannel, proof
from gpubench.measuring.nodes import Membership, NodeGroup, join

HERE = Path(__file__).parent
SUITE = HERE / "plugin" / "spread_suite.py"
SECRET = b"a secret of the launcher"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def started(folder, size, *filters):
    """Start nodes that write their results to `RANK.jsonl`; those that still run at the end are killed."""
    port = free_port()
    places = [map(str, (rank, size, port, folder / f"{rank}.jsonl", SUITE)) for rank in range(size)]
    commands = [[sys.executable, str(HERE / "_nodes.py"), *place, *filters] for place in places]
    nodes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for command in commands]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def results(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def outcomes(path):
    return [(row["name"], row["status"], row["cause"]) for row in results(path)]


def run(folder, size, *filters):
    """Run cases on a number of nodes and return the seconds; the exit status of the last node is not checked."""
    begun = time.monotonic()
    with started(folder, size, *filters) as nodes:
        for node in nodes[:-1]:
            _, errors = node.communicate(timeout=60)
            assert node.returncode == 0, errors.decode()
    return time.monotonic() - begun


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Run the cases on two nodes and return their folder."""
    folder = tmp_path_factory.mktemp("pair")
    run(folder, 2, "sound", "strange", "declined", "killed", "afterwards")
    return folder


def test_two_nodes_run_the_same_cases_and_learn_how_each_others_ranks_ended(pair):
    assert outcomes(pair / "0.jsonl") == [
        ("sound", "ok", ""),
        ("strange", "failed", "suite"),
        ("declined", "skipped", "unsupported"),
        ("killed", "failed", "crash"),
        ("afterwards", "failed", "crash"),
    ]
    assert outcomes(pair / "1.jsonl") == outcomes(pair / "0.jsonl")[:3], "until it was killed"


def test_results_of_ranks_on_other_nodes_are_kept_or_told(pair):
    assert "ranks of different nodes cannot exchange a object" in results(pair / "0.jsonl")[1]["reason"]
    assert results(pair / "0.jsonl")[2]["reason"] == "the last rank has no room"
    for rank in (0, 1):
        assert results(pair / f"{rank}.jsonl")[0]["series"]["self"][0] == rank
    for row in results(pair / "0.jsonl")[3:]:
        assert row["reason"] == "rank 1: node 1 has ended, or its connection broke"


@pytest.mark.slow
def test_three_nodes_exchange_values_and_a_node_that_hangs_is_reported_within_five_seconds(tmp_path):
    seconds = run(tmp_path, 3, "sound", "stopped", "afterwards")
    for rank in (0, 1):
        assert outcomes(tmp_path / f"{rank}.jsonl") == [
            ("sound", "ok", ""),
            ("stopped", "failed", "crash"),
            ("afterwards", "failed", "crash"),
        ]
    assert "node 2 sent nothing for 2 s" in results(tmp_path / "1.jsonl")[1]["reason"]
    assert seconds < 20


@pytest.mark.slow
def test_without_node_0_the_other_nodes_of_a_group_cannot_reach_each_other(tmp_path):
    with started(tmp_path, 3, "sound", "afterwards") as nodes:
        deadline = time.monotonic() + 30
        while not (tmp_path / "0.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        nodes[0].send_signal(signal.SIGSTOP)
        for node in nodes[1:]:
            node.communicate(timeout=60)
        reasons = {row["reason"] for rank in (1, 2) for row in results(tmp_path / f"{rank}.jsonl")}
        assert reasons == {"rank 0: node 0 sent nothing for 2 s"}


def place(rank, size, port, secret=SECRET):
    """Return the membership of node `rank` in a group on this machine."""
    return Membership(rank, size, "127.0.0.1", port, secret)


class JoiningNode(threading.Thread):
    def __init__(self, membership, plan=b"the same", patience_s=10.0):
        super().__init__(daemon=True)
        self.channels, self.error = {}, None
        self._arguments = (membership, plan, patience_s)
        self.start()

    def run(self):
        """Join the group and keep its channels, or the message of the refusal."""
        try:
            self.channels = join(*self._arguments)
        except UsageError as error:
            self.error = str(error)

    def ended(self):
        self.join(20)
        return self


def close(*nodes):
    for node in nodes:
        for channel in node.channels.values():
            channel.close()


def connected(port):
    """Return the connection of an intruder as soon as a node listens."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), 5)


def test_connections_that_send_nothing_or_invalid_bytes_do_not_delay_a_group():
    port = free_port()
    hub = JoiningNode(place(0, 2, port))
    silent, loud = connected(port), connected(port)
    loud.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
    begun = time.monotonic()
    node = JoiningNode(place(1, 2, port)).ended()
    assert (set(hub.ended().channels), set(node.channels), node.error) == ({1}, {0}, None)
    assert time.monotonic() - begun < 2
    with contextlib.suppress(ConnectionResetError):
        loud.recv(100)
        assert loud.recv(1) == b"", "it was sent away"
    silent.close()
    loud.close()
    close(hub, node)


def test_many_idle_visitors_do_not_keep_the_nodes_out():
    port = free_port()
    hub = JoiningNode(place(0, 3, port))
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(port))
        nodes = [JoiningNode(place(rank, 3, port)) for rank in (1, 2)]
        assert [node.error for node in (hub.ended(), *[node.ended() for node in nodes])] == [None] * 3
        close(hub, *nodes)


GREETING = b"gpubench nodes 2" + bytes(32)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "timed out|sent nothing"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no run of this version"),
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" * 50, "no run of this version"),
        (bytes(8) * 10_000, "no run of this version"),
        (len(GREETING).to_bytes(8, "big") + GREETING + (32).to_bytes(8, "big") + bytes(32), "has another secret"),
    ],
)
def test_a_node_that_reaches_another_program_ends_with_one_line(sent, message):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = JoiningNode(place(1, 2, listener.getsockname()[1]), patience_s=0.5)
        with listener.accept()[0] as connection, contextlib.suppress(OSError):
            connection.sendall(sent)
            node.ended()
    assert not node.is_alive()
    assert re.search(message, node.error), node.error
    assert len(node.error.splitlines()) == 1


def hello_frame(greeting):
    rank, nonce = (1).to_bytes(4, "big"), bytes(32)
    content = greeting[8:24] + rank + nonce + proof(SECRET, b"join", rank, greeting[24:], nonce)
    return len(content).to_bytes(8, "big") + content


def test_the_proof_of_one_connection_admits_no_other_one():
    port = free_port()
    hub = JoiningNode(place(0, 2, port), patience_s=2.0)
    with connected(port) as overheard, connected(port) as intruder:
        frame = hello_frame(overheard.recv(56, socket.MSG_WAITALL))
        intruder.recv(56, socket.MSG_WAITALL)
        intruder.sendall(frame)
        assert intruder.recv(1) == b"", "it was sent away"
        overheard.sendall(frame)
        assert len(overheard.recv(40, socket.MSG_WAITALL)) == 40, "it was welcomed"
    assert "left the group before the first case" in hub.ended().error


def test_a_node_with_another_secret_is_refused_and_node_0_names_the_missing_node():
    port = free_port()
    hub = JoiningNode(place(0, 2, port), patience_s=0.3)
    node = JoiningNode(place(1, 2, port, b"another secret!!")).ended()
    assert node.error == (
        f"node 0 at 127.0.0.1:{port} refused this node: it has another secret, or a node of this number already"
    )
    assert hub.ended().error == (
        f"node 1 did not join at 127.0.0.1:{port} in time; 1 visitors did not prove that they have the secret"
    )


def test_nodes_with_different_plans_end_with_one_line_each():
    port = free_port()
    hub = JoiningNode(place(0, 2, port), b"3 cases")
    node = JoiningNode(place(1, 2, port), b"4 cases").ended()
    message = "node 1 plans 4 cases, node 0 plans 3 cases; start every node with the same version, arguments and kinds"
    assert node.error == hub.ended().error
    assert node.error.startswith(message)


def sealed(connection, *, is_hub):
    channel = NodeChannel(connection, 100)
    channel.seal(b"key", is_hub=is_hub)
    return channel


@pytest.fixture
def channels():
    """Yield the two ends of an authenticated connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        onward = socket.create_connection(listener.getsockname())
        back, _ = listener.accept()
    hub, node = sealed(back, is_hub=True), sealed(onward, is_hub=False)
    yield hub, node, onward
    hub.close()
    node.close()


def first_messages(channel):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if arrived := list(channel.contents()):
            return arrived
    raise TimeoutError


def test_a_frame_arrives_as_it_was_sent(channels):
    hub, node, _ = channels
    node.send(b"")
    node.send(b"x" * 100_000)
    messages = []
    while len(messages) < 2:
        messages += first_messages(hub)
    assert messages == [b"", b"x" * 100_000]


def recorded(send):
    """Return the bytes of the frames that `send` makes, by a channel of the same key."""
    server, connection = socket.create_server(("127.0.0.1", 0)), None
    with server:
        onward = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
    channel = sealed(onward, is_hub=False)
    send(channel)
    channel.close()
    data = b""
    with connection:
        while chunk := connection.recv(2**20):
            data += chunk
    return data


def test_a_frame_that_is_replayed_or_sent_back_to_its_sender_is_refused(channels):
    hub, node, bare = channels
    frame = recorded(lambda channel: channel.send(b"once"))
    bare.sendall(frame)
    assert first_messages(hub) == [b"once"]
    bare.sendall(frame)
    hub._socket.sendall(frame)
    for end in (hub, node):
        with pytest.raises(BadMessage, match="not the other node's next one"):
            first_messages(end)


@pytest.mark.parametrize("damage", [0, 7, 8, -1], ids=["length", "last bit of the length", "content", "proof"])
def test_a_frame_of_which_a_bit_changed_is_refused(channels, damage):
    hub, _, bare = channels
    frame = bytearray(recorded(lambda channel: channel.send(b"content")))
    frame[damage] ^= 1
    bare.sendall(frame)
    with pytest.raises(BadMessage):
        first_messages(hub)


@pytest.mark.parametrize("sent", [3, 12, -1], ids=["length", "content", "proof"])
def test_a_frame_that_was_cut_is_no_message_and_delays_nobody(channels, sent):
    hub, _, bare = channels
    bare.sendall(recorded(lambda channel: channel.send(b"content"))[:sent])
    assert list(hub.contents()) == []
    bare.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        first_messages(hub)


def test_a_hello_that_is_too_long_is_refused_before_it_arrives():
    port = free_port()
    hub = JoiningNode(place(0, 2, port), patience_s=1.0)
    with connected(port) as visitor:
        visitor.recv(56, socket.MSG_WAITALL)
        visitor.sendall((85).to_bytes(8, "big"))
        assert visitor.recv(1) == b"", "it was sent away"
    assert "1 visitors did not prove that they have the secret" in hub.ended().error


def test_a_frame_that_is_too_long_is_refused_before_it_arrives(channels):
    hub, _, bare = channels
    bare.sendall((LIMIT_BYTES + 1).to_bytes(8, "big"))
    with pytest.raises(BadMessage, match=f"a message of {LIMIT_BYTES + 1} bytes"):
        first_messages(hub)


@pytest.mark.parametrize(
    "content",
    [b"rubbish", b"ExchangeRound\n{}", b'ExchangeRound\n{"case":1,"number":0,"offers":[[0,"1"]]}', b"RankResult\n{}"],
)
def test_a_node_that_sends_an_invalid_contribution_is_dropped(channels, content):
    hub, node, _ = channels
    with NodeGroup(0, 2, {1: hub}) as group:
        case = group.begin(1)
        node.send(content)
        case.contribute({0: b"1"}, {})
        deadline = time.monotonic() + 5
        while (round_values := case.finish_round()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert round_values is not None
        assert list(round_values[1]) == [1], "its rank has ended"
        assert "node 1" in group.gone[1]


@pytest.mark.parametrize(
    "value", [None, True, 0, -(2**70), 1.5, float("inf"), "½", b"\x00\xff", [1, (2, [b""])], ("a", None)]
)
def test_plain_data_comes_back_as_it_was_and_numbers_of_numpy_are_plain(value):
    assert plain.decode(plain.encode(value)) == value
    assert plain.decode(plain.encode((np.float64(1.5), np.bool_(True), np.int32(3)))) == (1.5, True, 3)


@pytest.mark.parametrize("value", [object(), {1: 2}, {1}, np.zeros(3), "x" * 3000])
def test_exchanging_anything_but_plain_data_is_an_error_of_the_suite(value):
    with pytest.raises(SuiteError, match=r"between nodes|different nodes"):
        plain.encode(value)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"bytes":"*"}', b'{"bytes":"","x":1}', b'{"tuple":3}', b"\xff", b"[" * 10_000]
)
def test_received_bytes_that_hold_no_plain_data_are_refused(content):
    with pytest.raises(ValueError, match="no plain data"):
        plain.decode(content)


def environment(**fields):
    variables = {nodes.NODES: "2", nodes.RANK: "1", nodes.ADDRESS: "[::1]:4000", nodes.SECRET: "s" * 16}
    return variables | fields


def test_the_environment_names_a_nodes_place_and_the_secret_is_removed_from_it(tmp_path, monkeypatch):
    place = environment()
    assert Membership.from_environment(place) == Membership(1, 2, "::1", 4000, b"s" * 16)
    assert nodes.SECRET not in place
    path = tmp_path / "secret"
    path.write_text("t" * 20 + "\n")
    assert Membership.from_environment(environment(**{nodes.SECRET_FILE: str(path)})).secret == b"t" * 20
    assert Membership.from_environment({}) is None
    assert "s" * 16 not in repr(Membership.from_environment(environment()))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    Membership.from_environment()
    assert nodes.SECRET not in os.environ, "no node leaves its secret to its children"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (nodes.RANK, "2", "must be a whole number from 0 to 1, and is '2'"),
        (nodes.NODES, "many", "must be a whole number from 1 to 4096, and is 'many'"),
        (nodes.ADDRESS, "host", "must be the HOST:PORT of node 0, and is 'host'"),
        (nodes.SECRET, "short", "needs at least 16 characters"),
        (nodes.SECRET_FILE, "/nowhere/secret", "/nowhere/secret cannot be read"),
    ],
)
def test_an_invalid_place_is_refused_and_its_variable_is_named(name, value, message):
    with pytest.raises(UsageError) as caught:
        Membership.from_environment(environment(**{name: value}))
    assert name in str(caught.value)
    assert message in str(caught.value)
