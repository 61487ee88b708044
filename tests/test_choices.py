"""Choices by a model: what they lose on points that it did not know, over replicates, and the best intervals."""

import math

import _make as make
import numpy as np
import pytest

from gpubench.analysis.summary import Summary
from gpubench.analysis.views import choices, intervals
from gpubench.analysis.views.tables import derived_lines, tables
from gpubench.model import SuiteInfo, View, Work

SIZES = tuple(2.0**power for power in range(10, 25, 2))
SENDER = View("choice", "Sender", ("write",), "size_bytes", by=("by",))


def straight(alpha_s, beta, sizes=SIZES):
    """Return the times of α + n/β by size."""
    return {size: alpha_s + size / beta for size in sizes}


def test_a_point_is_predicted_by_its_neighbours_and_a_hidden_one_costs_what_the_best_way_would_save():
    times = {100.0: 1.0, 200.0: 77.0, 400.0: 4.0}
    assert choices.between(times, 200.0) == pytest.approx(2.0)
    assert choices.between(times, 300.0) == 77.0, "a time that falls with the size counts as equally long"
    assert choices.between(times, 100.0) is None
    assert choices.between(times, 400.0) is None
    assert choices.fastest({"socket": 1.01, "memory": 1.0}) == "socket"
    assert choices.fastest({"socket": 1.03, "memory": 1.0}) == "memory"
    odd = straight(1e-6, 1e10) | {SIZES[3]: 1.0}
    (choice,) = (
        choice for choice in choices.left_out({"odd": odd, "even": straight(2e-6, 1e10)}) if choice.at == SIZES[3]
    )
    assert choice.way == "odd"
    assert choice.loss == pytest.approx(1 / (2e-6 + SIZES[3] / 1e10) - 1)


def test_ways_whose_times_are_straight_are_chosen_without_loss_and_a_fixed_way_loses():
    chosen = choices.left_out({"small": straight(1e-6, 1e10), "large": straight(2e-5, 2e11)})
    assert [choice.at for choice in chosen] == list(SIZES[1:-1])
    assert [choice.way for choice in chosen] == ["small"] * 3 + ["large"] * 3
    assert [choice.loss for choice in chosen] == [0.0] * 6
    assert choices.always_the_same(chosen) > 2


def test_a_replayed_change_of_rate_costs_a_follower_one_replicate_and_a_fixed_choice_all_that_follow():
    fast, slow = straight(1e-6, 4e10), straight(1e-6, 1e10)
    other = straight(1e-6, 2e10)
    rates = [fast, fast, slow, slow, slow]
    replay = choices.replayed([{"link": link, "host": other} for link in rates])
    assert replay.replicates == 5
    assert replay.change == pytest.approx(4, rel=0.01)
    places = len(SIZES)
    assert max(replay.following[:places]) == 0.0
    assert replay.following[places + 1] > 0.1
    assert max(replay.following[2 * places :]) == 0.0
    assert min(replay.fixed[-3 * places + 1 :: places]) > 0.1
    assert choices.replayed([{"link": fast, "host": other}]) is None


def write(by, size, seconds, replicate=0, **params):
    """Return the result of a copy by one means."""
    series = make.timing(seconds, name="self", work=Work(payload=size), quantity="payload")
    case = make.case("write", "p2p", device="cuda:0", by=by, size_bytes=int(size), **params)
    return make.result(series, of=case, replicate=replicate)


def run_of(*results, view=SENDER, suite="p2p"):
    return make.run(*results, suites=(SuiteInfo(suite, "several", (view,)),))


def test_a_run_shows_the_losses_and_the_replay_of_each_group():
    rates = {"engine": (1e-5, 4e11), "kernel": (2e-6, 2e11)}
    results = [
        write(by, size, seconds * (3 if replicate and by == "engine" else 1), replicate)
        for replicate in (0, 1)
        for by, line in rates.items()
        for size, seconds in straight(*line).items()
    ]
    run = run_of(*results)
    (view,) = choices.Choices.of(Summary(run), "p2p", SENDER)
    (group,) = view.groups
    assert (group.label, group.ways) == ("cuda:0 · cuda:0", ("engine", "kernel"))
    assert group.replay.change == pytest.approx(3)
    assert max(group.replay.fixed) > 0.4
    predicted, replayed = tables(Summary(run), "p2p")
    assert predicted.rows[0][:3] == ("cuda:0 · cuda:0: engine, kernel", "6", "kernel from 4 KiB")
    assert replayed.rows[0][1:3] == ("2", "3.00×")
    names = [line["series"] for line in derived_lines(Summary(run))]
    assert names[:2] == ["median loss", "worst loss"]
    assert "worst replayed loss, fixed" in names


def layer(of, batch):
    """Return the result of a layer whole and split over ranks."""
    seconds = {"unsplit": float(batch), "data": 1 + batch / of}
    series = [make.timing(taken_s, name=f"{stage}.self") for stage, taken_s in seconds.items()]
    return make.result(*series, of=make.case("layer", "patterns", of=of, batch=batch))


def test_the_stages_of_a_case_are_ways_too():
    view = View("choice", "Split", ("layer",), "batch", by=("of",), series="*")
    run = run_of(*(layer(of, batch) for of in (2, 4) for batch in (1, 2, 4, 8)), view=view, suite="patterns")
    (split,) = choices.Choices.of(Summary(run), "patterns", view)
    (group,) = split.groups
    assert group.ways == ("of=2 · unsplit", "of=2 · data", "of=4 · unsplit", "of=4 · data")
    assert [choice.way for choice in group.choices] == ["of=4 · data"] * 2


@pytest.mark.parametrize("sizes", [SIZES[:2], SIZES[:1], ()])
def test_of_few_sizes_nothing_is_predicted_and_a_run_has_no_table(sizes):
    assert choices.left_out({"one": straight(1e-6, 1e9, sizes), "other": straight(1e-6, 1e9, sizes)}) == []
    results = [write(by, size, 1e-3) for by in ("engine", "kernel") for size in sizes]
    assert tables(Summary(run_of(*results)), "p2p") == []


# seconds of a step, of a save, and between failures
COSTS = [(1.0, 0.5, 600.0), (0.01, 2.0, 3600.0), (1.0, 30.0, 100.0), (0.1, 1e-4, 10.0)]


@pytest.mark.parametrize(("step", "save", "mtbf"), COSTS)
def test_dalys_interval_costs_no_more_than_the_best_of_all_intervals(step, save, mtbf):
    costs = intervals.SnapshotCosts(step, save, 0.0, mtbf)
    counts = np.unique(np.geomspace(1, 20 * math.sqrt(2 * save * mtbf) / step + 2, 4000).astype(int))
    best = min(costs.slowdown(int(count)) for count in counts)
    assert costs.slowdown(costs.best_steps()) <= 1.001 * best
    assert intervals.daly_s(1e-3, 1e4) == pytest.approx(intervals.young_s(1e-3, 1e4), rel=1e-3), "cheap snapshots"
    assert intervals.daly_s(300.0, 100.0) == 100.0


@pytest.mark.parametrize(("exchange_s", "steps"), [(0.0, 1), (0.05, 1), (0.06, 2), (0.2, 4), (0.9, 18)])
def test_exchanges_are_as_frequent_as_a_share_of_five_percent_allows(exchange_s, steps):
    assert intervals.ExchangeCosts(1.0, exchange_s).best_steps() == steps


def test_an_interval_is_predicted_by_the_sizes_on_both_sides_and_its_loss_is_small():
    view = View("interval", "Steps", ("snapshot",), "size_bytes", "step")
    results = [
        make.result(
            make.timing(size / 5e10 + 1e-5, name="host", work=Work(payload=size), quantity="payload"),
            make.timing(size / 5e10, name="resume.self"),
            make.timing(size / 2e11, name="step"),
            of=make.case("snapshot", "patterns", medium="memory", size_bytes=int(size)),
        )
        for size in (2.0**26, 2.0**28, 2.0**30)
    ]
    run = run_of(*results, view=view, suite="patterns")
    (derived,) = intervals.Intervals.of(Summary(run), "patterns", view)
    assert len(derived.intervals) == 6
    assert [interval.predicted is None for interval in derived.intervals] == [True, True, False, False, True, True]
    assert all(interval.adds < 0.05 for interval in derived.intervals)
    assert len(derived.losses) == 2
    assert max(derived.losses) < 1e-4
    (table,) = tables(Summary(run), "patterns")
    assert table.rows[0][:2] == ("size=64MiB · memory · cuda:0", "a failure every 1 h")
    assert "cases left out: 2" in table.note
