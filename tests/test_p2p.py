"""Between two GPUs of one process: the plan, and kernels and checks on two GPUs on paper."""

import math
from collections import Counter
from pathlib import Path

import _grid
import numpy as np
import pytest
from _earlier import expect_found
from _grid import needs_compiler
from _modules import room_module, suite_module
from _paper_pair import LINK, QUICK_S, SLOW_S, SUITE, bench, on_paper
from _poison import called, expect_unwritten

from gpubench.authoring.axes import Target
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.model import store

H200S = Path(__file__).parent / "recordings" / "h200x2-quick.jsonl.gz"
MIB = 2**20


def cases(tier):
    facts = store.read_run(H200S).manifest.facts
    return list(SUITE.cases(Target(facts, facts.devices[0], tier)))


@pytest.fixture
def small_bulk(monkeypatch):
    """Reduce bulk copies to 1 MiB, so that the host's kernels end soon."""
    monkeypatch.setattr(suite_module("p2p", "_control"), "BULK_BYTES", MIB)


def test_cases_run_in_the_released_order_with_control_last():
    assert list(SUITE.definitions) == ["read", "write", "latency", "both", "control"]
    assert {definition.version for definition in SUITE.definitions.values()} == {1}
    for view in SUITE.views:
        assert set(view.cases) <= set(SUITE.definitions), view.title


@pytest.mark.parametrize(
    ("tier", "copies", "messages"), [("smoke", 9, 9), ("quick", 9, 6), ("full", 3 * 3 * 28, 3 * (1 + 2 + 2 * 3))]
)
def test_each_tier_has_its_number_of_copies_and_messages(tier, copies, messages):
    assert not [case.id for case in cases(tier) if "beside=engine,traffic=both" in case.id]
    control = [case for case in cases(tier) if case.name == "control"]
    counts = Counter(case.name for case in cases(tier))
    assert (len(control), counts["read"] + counts["write"] + counts["both"]) == (messages, copies)
    assert all((case.param("beside") == "nothing") == (case.param("traffic") == "none") for case in control)


@pytest.mark.parametrize("case", ["read", "write", "both"])
def test_a_device_without_bulk_copies_skips_them_and_says_why(case):
    with pytest.raises(Skip, match="sm_90 does not support bulk copies"):
        SUITE.build(bench(case, features=frozenset(), by="bulk", size_bytes=MIB))
    with pytest.raises(Skip, match="sm_90 does not support bulk copies"):
        SUITE.build(bench(features=frozenset(), message="load", beside="bulk", traffic="write"))


@pytest.mark.parametrize("way", ["pull", "load", "bulk-load", "push", "store", "bulk-store"])
def test_the_notes_of_a_copy_name_its_engine_and_whether_it_reads_or_writes(way):
    notes = room_module("suites", "_link").link_of("one way", way)
    engine = {"pu": "copy engine", "bu": "bulk copies (TMA) on all SMs"}.get(way[:2], "kernel on all compute units")
    assert notes["link.engine"].startswith(engine)
    assert notes["link.way"].startswith("reads" if way in ("pull", "load", "bulk-load") else "writes")


@needs_compiler
@pytest.mark.parametrize("by", ["engine", "kernel", "bulk"])
@pytest.mark.parametrize("name", ["read", "write", "both"])
def test_a_copy_is_checked_and_its_check_can_fail(name, by):
    task = SUITE.build(bench(name, by=by, size_bytes=2**16))
    for _ in range(2):
        called(task)


COPY = {"by": "kernel", "size_bytes": 2**16}


@needs_compiler
@pytest.mark.parametrize(
    ("name", "params", "targets"),  # the places of the targets among the arrays that the case makes
    [
        ("read", COPY, [0]),
        ("write", COPY, [1]),
        ("both", COPY, [1, 3]),
        ("latency", {"of": "copy"}, [0]),
        ("control", {"message": "load", "beside": "bulk", "traffic": "read"}, [0]),
        ("control", {"message": "copy", "beside": "nothing", "traffic": "none"}, [0]),
    ],
)
@pytest.mark.usefixtures("small_bulk")
def test_an_earlier_copy_is_found(name, params, targets):
    pair, arrays = bench(name, **params), []
    device = pair.open_device
    for owner, made in ((device.xp, "empty"), (device.xp, "zeros"), (device, "peer_memory")):
        make = getattr(owner, made)
        setattr(owner, made, lambda *args, make=make: arrays.append(make(*args)) or arrays[-1])
    expect_found(SUITE.build(pair), device, *(arrays[place] for place in targets))


@needs_compiler
@pytest.mark.parametrize("size", [8, 16, 24, 4096, 200_008, MIB])
@pytest.mark.parametrize("units", [0, 2])
def test_a_bulk_copy_copies_every_byte_and_no_other(size, units):
    rng = np.random.default_rng(size)
    source, target = on_paper(rng.integers(0, 256, size, np.uint8)), on_paper(np.zeros(size + 16, np.uint8))
    room_module("suites", "_copies").bulk_copier(bench(), target[:size], source, units)()
    np.testing.assert_array_equal(target[:size], source)
    assert not target[size:].any()


@needs_compiler
def test_kernels_beside_messages_leave_a_compute_unit_free(small_bulk):
    for messages_beside in ("kernel", "bulk"):
        made = bench(message="load", beside=messages_beside, traffic="both")
        task = SUITE.build(made)
        task.stages[""].call()
        grids = {(grid, shared) for name, grid, _, shared in made.launches if name in ("copy", "bulk_copy")}
        ((grid, shared),) = grids
        assert 2 * grid[0] < made.target.device.units
        assert shared > made.traits.max_shared_bytes // 2
        task.check()


@needs_compiler
def test_the_walk_of_loads_ends_where_its_order_says_and_each_load_has_a_time():
    task = SUITE.build(bench(message="load", beside="nothing", traffic="none"))
    seconds = task.stages[""].call()
    # one reading of the grid's clock takes 1000 cycles, 500 ns
    assert seconds == pytest.approx([500e-9] * 1024, rel=0.002)
    task.check()
    messages = suite_module("p2p", "_control").PeerLoads(bench())
    messages.send()
    messages._ring.walked += 1
    with pytest.raises(WrongAnswer, match="after 1025 loads the walk is at line"):
        messages.check()


@needs_compiler
@pytest.mark.parametrize(
    ("first", "answered", "rounds", "ended", "sent"),
    [
        ((1, 0), 2, 5, 3, 3),  # a signal never comes: the wait ends in bounded time
        ((0, 4), 10, 6, 0, 10),
    ],
)
def test_signals_are_waited_for_in_bounded_time_and_the_first_round_is_not_timed(first, answered, rounds, ended, sent):
    near, far = np.full(1, answered, np.uint32), np.zeros(1, np.uint32)
    ticks, state = np.zeros(rounds - 1, np.uint32), np.zeros(3, np.uint64)
    numbers = (np.uint32(first[0]), np.uint32(first[1]), np.uint32(rounds), np.uint64(10**6))
    _grid.kernel("p2p/remote.cu", "timed_signals")((1,), (1,), (near, far, *numbers, ticks, state))
    assert (state[0], far[0]) == (ended, sent)
    if not ended:
        assert ticks.sum() == state[1]
        assert (ticks > 0).all()


def messages_beside(engine, traffic="read"):
    """Return the task of small copies beside bulk copies by `engine`, and its bench."""
    made = bench(message="copy", beside=engine, traffic=traffic)
    return SUITE.build(made), made


@needs_compiler
def test_a_sample_whose_bulk_copies_ended_too_early_is_nan_and_the_next_has_twice_as_many(small_bulk):
    task, _ = messages_beside("kernel")
    call = task.stages[""].call
    assert math.isnan(call())
    assert call() == pytest.approx([SLOW_S])
    task.check()
    task, _ = messages_beside("kernel", "both")
    stage = task.stages[""]
    while not isinstance(stage.call(), list):
        pass
    observed = stage.probe()
    assert observed["slowdown"].value == pytest.approx(SLOW_S / QUICK_S)
    assert observed["bulk_read"].value == observed["bulk_write"].value == pytest.approx(LINK)
    assert (stage.work.items, stage.quantity) == (1, "item")


@needs_compiler
def test_bulk_copies_that_cannot_last_long_enough_stay_nan_and_stay_bounded(small_bulk, monkeypatch):
    monkeypatch.setattr("_paper_pair.SLOW_S", 1.0)
    monkeypatch.setattr(suite_module("p2p", "_control"), "_MOST_COPIES", 16)
    task, made = messages_beside("kernel")
    assert all(math.isnan(task.stages[""].call()) for _ in range(6))
    assert made.device.clock < 6 * (1.0 + 16 * MIB / LINK + 1)


@pytest.mark.parametrize("traffic", ["read", "write", "both"])
def test_a_copy_queued_behind_a_bulk_copy_of_the_copy_engine_waits_and_a_byte_that_did_not_arrive_is_found(
    small_bulk, traffic
):
    task, _ = messages_beside("engine", traffic)
    expect_unwritten(task)
    while not isinstance(seconds := task.stages[""].call(), list):
        pass
    task.check()
    if traffic != "both":
        assert "behind one bulk copy" in task.notes["order"]
        assert seconds == pytest.approx([MIB / LINK + QUICK_S])


@pytest.fixture(scope="module")
def recorded():
    run = store.read_run(H200S.parent / "whole/h200x2.jsonl.gz")
    results = [result for result in run.results if result.case.name == "control"]
    assert {result.status for result in results} == {"ok"}
    return {
        (dict(result.case.params)["message"], dict(result.case.params)["beside"]): {
            series.label: np.median(series.values) for series in result.series
        }
        for result in results
    }


def test_on_two_h200_only_a_copy_waits_for_the_copy_engine_and_messages_slow_down_more_beside_sms(recorded):
    bulk_s = 64 * MIB / recorded["copy", "engine"]["bulk_read"]
    assert recorded["copy", "engine"]["self"] == pytest.approx(bulk_s, rel=0.15)
    for message in ("load", "signal"):
        assert recorded[message, "engine"]["self"] < bulk_s / 50
        assert 1.0 < recorded[message, "engine"]["slowdown"] < recorded[message, "bulk"]["slowdown"]
