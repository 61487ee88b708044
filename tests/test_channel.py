"""Messages from a child: the parent decodes checked JSON of limited size, whatever the child writes."""

import contextlib
import os
import pickle
import socket
import struct
import threading
import tracemalloc

import pytest

from gpubench.measuring.channel import LIMIT_BYTES, MOST_VALUES, BadMessage, ToChild, TooLarge, ToParent, encoded
from gpubench.measuring.time_limits import Phase
from gpubench.measuring.worker import OfferedValue, RankResult
from gpubench.model import Series

MIB = 2**20
MOST_MIB = 64  # memory that a message may cost the parent: four times the limit of a message


@pytest.fixture
def parent_and_child():
    ours, child_end = socket.socketpair()
    parent = ToChild(ours.detach(), (RankResult, OfferedValue, Phase))
    with child_end:
        yield parent, child_end
    parent.close()


def frame(content):
    return struct.pack(">Q", len(content)) + content


def received(parent, child, content):
    """Return the messages that the parent reads from bytes that the child writes before it ends."""

    def write():
        with child, contextlib.suppress(ConnectionError):  # the parent may have refused the message and closed
            child.sendall(content)

    writer = threading.Thread(target=write)
    writer.start()
    messages = []
    try:
        while True:
            parent.poll(1.0)
            messages.extend(parent.arrived())
    except (EOFError, BadMessage) as error:
        return messages, error
    finally:
        parent.close()
        writer.join()


def test_a_result_of_a_rank_arrives_as_it_was_sent_and_a_large_value_for_other_ranks_without_decoding(parent_and_child):
    part = RankResult("ok", series=(Series("", "s", (1e-9, 0.1, 1 / 3)),), labels=("é ",), window=(1.5, 2.5))
    offer = OfferedValue(os.urandom(8 * MIB))
    messages, error = received(*parent_and_child, frame(encoded(part)) + frame(encoded(offer)))
    assert messages == [part, offer]
    assert isinstance(error, EOFError)


class ExecutedWhenUnpickled:
    def __reduce__(self):
        return pytest.fail, ("the parent has executed what a child sent",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (frame(b"rubbish"), "bytes that are no message"),
        (frame(b""), "bytes that are no message"),
        (b"\xc8\x1f\xeb\x53\x26\xd4\x94\x29 rubbish", "a message of"),
        (struct.pack(">Q", 2**63), "a message of"),
        (frame(b"Order\n{}"), "bytes that are no message: b'Order'"),
        (frame(pickle.dumps(ExecutedWhenUnpickled())), "bytes that are no message"),
        (frame(b"RankResult\n" + pickle.dumps(ExecutedWhenUnpickled())), "a RankResult that is malformed"),
        (frame(b"RankResult\n{}"), "status: Field required"),
        (frame(b'RankResult\n{"status":"splendid"}'), "status: Input should be 'ok'"),
        (frame(b'RankResult\n{"status":"ok","more":1}'), "more: Unexpected keyword argument"),
        (frame(b'RankResult\n{"status":"ok","window":[NaN,0]}'), "window.0"),
        (frame(b'RankResult\n{"status":"ok","labels":"text"}'), "labels"),
        (frame(b'RankResult\n{"status":"ok"'), "EOF while parsing"),
        (frame(b"RankResult\n" + b"[" * MIB), "recursion limit exceeded"),
        (frame(b'Phase\n{"name":"x","limit_s":1e999,"basis":"y"}'), "limit_s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_that_are_no_message_are_refused_with_the_reason_and_earlier_messages_kept(
    parent_and_child, content, message
):
    messages, error = received(*parent_and_child, frame(b'RankResult\n{"status":"ok"}') + content)
    assert [message.status for message in messages] == ["ok"]
    assert isinstance(error, BadMessage)
    assert message in str(error)
    assert len(str(error)) < 300


def test_an_incomplete_frame_does_not_block_the_parent(parent_and_child):
    parent, child = parent_and_child
    child.sendall(struct.pack(">Q", 100) + b"RankResult")
    assert not parent.poll(0.01)
    assert list(parent.arrived()) == []
    child.close()
    with pytest.raises(EOFError):
        list(parent.arrived())


SERIES = b'RankResult\n{"status":"ok","series":[{"name":"x","unit":"","values":['


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(struct.pack(">Q", LIMIT_BYTES + 1) + b"x" * (LIMIT_BYTES + 1), id="too long"),
        pytest.param(
            frame(b'RankResult\n{"status":"ok","reason":"' + b"x" * (LIMIT_BYTES - 100) + b'"}'), id="one text"
        ),
        pytest.param(frame(SERIES + b"0," * (2**23 - 100) + b"0]}]}"), id="too many values"),
        pytest.param(
            frame(b'RankResult\n{"status":"ok","labels":[' + b'"",' * (MOST_VALUES - 20) + b'""]}'), id="many texts"
        ),
        pytest.param(frame(SERIES + b"0," * (MOST_VALUES - 20) + b"0]}]}"), id="many values", marks=pytest.mark.slow),
        pytest.param(
            frame(b'RankResult\n{"status":"ok","notes":[' + b'["",""],' * (MOST_VALUES // 2 - 20) + b'["",""]]}'),
            id="many pairs",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_message_takes_more_of_the_parents_memory_than_allowed(parent_and_child, content):
    received(*parent_and_child, b"")  # this loads the decoder before memory is measured
    ours, child_end = socket.socketpair()
    parent = ToChild(ours.detach(), (RankResult,))
    tracemalloc.start()
    try:
        with child_end:
            received(parent, child_end, content)
        peak_mib = tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()
    assert peak_mib < MOST_MIB


def test_a_child_learns_the_reason_why_its_message_cannot_be_sent():
    with pytest.raises(TooLarge, match=r"30\.5 MiB, of which 16 are allowed"):
        encoded(RankResult("ok", notes=(("x", "x" * 32_000_000),)))
    with pytest.raises(TooLarge, match="values, of which 1048576 are allowed"):
        encoded(RankResult("ok", series=(Series("", "s", (0.0,) * (MOST_VALUES + 1)),)))
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoded(RankResult("ok", window=(float("nan"), 0.0)))
    with pytest.raises(TypeError, match="a message holds no object"):
        encoded(RankResult("ok", notes=(("x", object()),)))


def test_sending_to_a_child_that_does_not_read_ends_after_its_time_limit(monkeypatch):
    monkeypatch.setattr("gpubench.measuring.channel.SEND_S", 0.05)
    ours, child_end = socket.socketpair()
    parent = ToChild(ours.detach(), (RankResult,))
    with child_end, pytest.raises(TimeoutError):
        parent.send(bytes(4 * MIB))
    parent.close()


def test_orders_and_exchanged_values_of_many_megabytes_reach_the_child(parent_and_child):
    parent, child = parent_and_child
    value = [os.urandom(4 * MIB)] * 8
    sender = threading.Thread(target=parent.send, args=(value,))
    sender.start()
    child_end = ToParent(child.detach())
    assert child_end.recv() == value
    child_end.close()
    sender.join()


def test_a_frame_ends_with_its_content_so_that_its_receiver_may_close_at_once(parent_and_child, monkeypatch):
    parent, _ = parent_and_child
    sent = []
    monkeypatch.setattr(parent, "_socket", type("Recorder", (), {"sendall": staticmethod(sent.append)}))
    parent.send(bytes(MIB))
    monkeypatch.undo()
    assert all(sent), "sending no bytes fails at a closed socket"
