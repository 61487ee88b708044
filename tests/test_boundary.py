"""A mistake of a collector costs the value, the message or the collector, and never the run."""

import math
import threading
import unicodedata
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from _command import in_process
from hypothesis import given
from hypothesis import strategies as st

from gpubench.base.errors import Unavailable
from gpubench.measuring import boundary
from gpubench.measuring.group import CounterGroup
from gpubench.model import Counter, Device, Samples, record
from gpubench.model.store import read_run
from gpubench.plugins.collector import Condition

PLUGIN = str(Path(__file__).parent / "plugin")
DEVICE = Device("host", "host", "a processor", "x86-64")
ANYTHING = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers()),
        *(st.decimals(), st.fractions(), st.just(object()), st.just(10**400), st.just(np.float32("nan"))),
        st.builds(np.int64, st.integers(-(2**63), 2**63 - 1)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


class GivenSource:
    def __init__(self, reading, messages=()):
        self.reading = reading
        self.sent = messages

    def read(self, device, names):
        if isinstance(self.reading, BaseException):
            raise self.reading
        return self.reading

    def messages(self, device):
        if isinstance(self.sent, BaseException):
            raise self.sent
        return self.sent

    def close(self):
        pass


def group(source):
    return CounterGroup("any", source, DEVICE, ("any.a", "any.b"), 0.1)


def records(taken):
    """Return the records that a group gathered, each encoded and decoded as in a run file."""
    return [record.decode(record.encode(item)) for item in taken]


@given(reading=ANYTHING | st.dictionaries(st.sampled_from(["any.a", "any.b"]), ANYTHING), messages=ANYTHING)
def test_any_value_that_a_source_returns_can_be_written_to_a_run_file(reading, messages):
    counters = group(GivenSource(reading, messages))
    counters.read(0.0, 0.0)
    counters.finish(0.0)
    samples, *_ = records(counters.take())
    assert isinstance(samples, Samples)
    assert all(value is None or math.isfinite(value) for _, values in samples.columns for value in values)


@pytest.mark.parametrize(
    "raised", [KeyError("x"), SystemExit(0), RecursionError(), MemoryError(), Unavailable("gone", "")]
)
def test_any_exception_of_a_source_becomes_a_row_of_missing_values_and_a_remark(raised):
    counters = group(GivenSource(raised))
    counters.read(0.0, 0.0)
    samples, remark = counters.take()
    assert [values for _, values in samples.columns] == [(None,), (None,)]
    assert remark.state == "lost"


def test_refused_values_failures_and_messages_are_counted_and_limited():
    counters = group(GivenSource({"any.a": math.inf, "any.b": "3"}))
    for _ in range(4):
        counters.read(0.0, 0.0)
    counters.finish(0.0)
    messages = [record.words for record in counters.take()[1:]]
    assert messages == [
        "any.a was not a finite number (inf): that value is missing",
        "any.b was not a number but str '3': that value is missing",
        "any.a: 4 values of the run were refused and are missing",
        "any.b: 4 values of the run were refused and are missing",
    ]
    counters = group(GivenSource({}))
    for number in range(300):
        counters.source.reading = Unavailable(f"failure {number}", "")
        counters.read(0.0, 0.0)
    messages = [record.words for record in counters.take()[1:]]
    assert len(messages) == 101
    assert messages[-1] == "further warnings are omitted"
    counters = group(GivenSource({}, ["x"] * 100))
    for _ in range(50):
        counters.read(0.0, 0.0)
    messages = [record.words for record in counters.take()[1:] if record.state == "event"]
    assert len(messages) == 1001
    assert messages[-1] == "further messages are omitted"


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, "1", b"1", None, 1j, Decimal(1), [], object()])
def test_a_reading_that_is_not_a_finite_number_is_refused_with_a_reason_and_every_real_type_accepted(value):
    with pytest.raises(ValueError, match=r"not|larger"):
        boundary.number(value)
    for real in (1, True, np.int64(3), np.float32(0.5), Fraction(1, 4)):
        assert boundary.number(real) == float(real)
        assert type(boundary.number(real)) is float


@pytest.mark.parametrize(
    ("value", "events", "words"),
    [
        (math.nan, (), "any.a was not a finite number (nan): that value is missing"),
        *((value, ("any.a", "any.b"), "any.a was not a bit mask (") for value in (-1, 0.5, 1e99, 2.0**63)),
    ],
)
def test_a_value_that_is_not_finite_or_no_bit_mask_is_missing_and_the_others_of_its_row_are_kept(value, events, words):
    source = GivenSource({"any.a": value, "any.b": 5})
    counters = CounterGroup("any", source, DEVICE, ("any.a", "any.b"), 0.1, frozenset(events))
    counters.read(0.0, 0.0)
    samples, remark = counters.take()
    assert samples.columns == (("any.a", (None,)), ("any.b", (5.0,)))
    assert remark.words.startswith(words)


@given(declared=ANYTHING | st.lists(st.builds(Counter, ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING), max_size=2))
def test_a_collector_with_malformed_counters_is_not_read(declared):
    try:
        accepted = boundary.counters(declared)
    except Unavailable:
        return
    assert all(isinstance(counter.name, str) and math.isfinite(counter.period_s) for counter in accepted)


@pytest.mark.parametrize(
    ("counter", "message"),
    [
        (Counter("a.x", "W", "gauge", 0.0, ""), "period_s"),
        (Counter("a.x", "W", "gauge", math.nan, ""), "period_s"),
        (Counter("a.x", "W", "mean", 0.1, ""), "kind"),
        (Counter("a.x", 7, "gauge", 0.1, ""), "unit"),
        (Counter("a\nx", "W", "gauge", 0.1, ""), "name"),
        ("a.x", "not a Counter"),
    ],
)
def test_a_malformed_counter_is_refused_and_its_wrong_field_is_named(counter, message):
    with pytest.raises(Unavailable, match=message):
        boundary.counters([counter])


@given(value=ANYTHING)
def test_settings_and_messages_become_short_single_lines(value):
    for ask in (boundary.pairs, boundary.texts):
        try:
            answer = ask(value)
        except Unavailable:
            continue
        for element in [*answer, *(answer.values() if isinstance(answer, dict) else ())]:
            assert len(element) <= 500
            assert not [letter for letter in element if unicodedata.category(letter).startswith("C")]


@pytest.mark.parametrize(
    "looked",
    [
        *(None, "x", Condition("x"), Condition((1,)), Condition((), ("a\nb",)), Condition(["x"])),
        *(Condition(clock_hz=clock_hz) for clock_hz in (math.nan, math.inf, -1.0, "1.98 GHz", True)),
    ],
)
def test_a_watch_that_returns_no_condition_fails_its_case(looked):
    with pytest.raises(TypeError, match="Condition"):
        boundary.condition(looked)


def test_a_run_survives_a_collector_that_does_everything_wrong(tmp_path):
    out = tmp_path / "run.jsonl"
    arguments = ("run", "gemm", "--device", "host", "--tier", "smoke", "--filter", "gemm/square", "--out", out)
    done = in_process(*arguments, PYTHONPATH=PLUGIN, GPUBENCH_SICK="rubbish", GPUBENCH_HISTORY="off")
    assert done.returncode == 0, done.stderr
    run = read_run(out)
    assert run.complete
    assert {result.status for result in run.results} == {"ok"}
    assert any("sick.fast was not a finite number (" in message for message in run.messages)
    device = run.manifest.facts.device("host")
    assert dict(device.details)["sick.limit"] == "3.5"
    assert len(dict(device.details)) == len(device.details)


def test_a_group_stops_on_request_even_if_its_source_raises_systemexit():
    stop, counters = threading.Event(), group(GivenSource(SystemExit(1), SystemExit(2)))
    thread = threading.Thread(target=counters.run, args=(stop, 0.0))
    thread.start()
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
