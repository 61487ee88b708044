"""The summary of a run: rates, headlines, peaks and counts, derived from raw samples."""

import math
from pathlib import Path

import _make as make
import pytest

from gpubench.analysis import overview, quantities, summary, trend
from gpubench.model import Samples, Series, Work, store

RECORDINGS = Path(__file__).parent / "recordings"


def work_series(quantity, *seconds, **work):
    return Series("hot", "s", seconds, work=Work(**work), quantity=quantity)


@pytest.mark.parametrize(
    ("series", "values", "unit", "better"),
    [
        (work_series("moved", 0.5, 2.0, moved=4e9, payload=1.0), [8e9, 2e9], "B/s", "more"),
        (work_series("payload", 0.5, moved=1.0, payload=3e9), [6e9], "B/s", "more"),
        (work_series("flops", 2.0, flops=1e12), [5e11], "FLOP/s", "more"),
        (work_series("item", 2.0, 4.0, items=1000.0), [0.002, 0.004], "s", "less"),
        (work_series("value", 2.0, moved=1e9), [2.0], "s", "less"),
        (Series("ratio", "", (1.5, 2.5), better="more"), [1.5, 2.5], "", "more"),
    ],
)
def test_a_series_is_judged_in_the_quantity_that_it_names(series, values, unit, better):
    assert quantities.judged_values(series).tolist() == values
    assert quantities.judged_unit(series) == unit
    assert quantities.judged_better(series) == better


RANKS = [make.timing(seconds, rank=rank, moved=1e9) for rank, seconds in enumerate([1.0, 3.0, 2.0])]
BUSES = [Series("bus", "B/s", (rate,), better="more", rank=rank) for rank, rate in enumerate([5e9, 2e9, 4e9])]


@pytest.mark.parametrize(
    ("series", "place"),
    [
        ([make.timing(1.0, name="hot"), make.timing(9.0, name="cold")], 0),
        ([*RANKS, make.timing(9.0, name="cold", rank=3)], 1),
        (BUSES, 1),
    ],
    ids=["the first series", "the slowest rank", "the rank of the lowest rate"],
)
def test_the_headline_is_the_first_series_of_the_slowest_rank(series, place):
    assert quantities.headline(make.result(*series)) == series[place]
    assert quantities.headline(make.result(status="skipped")) is None


def test_a_figure_is_a_median_with_its_interval_noise_and_share_of_spec():
    result = make.result(make.timing(0.9e-3, 1.0e-3, 1.25e-3, moved=4.2e9, limit="dram"))
    run = make.run(result)
    figure = summary.Summary(run).figure(result, result.series[0])
    assert (figure.unit, figure.better, figure.samples) == ("B/s", "more", 3)
    assert (figure.interval.low, figure.interval.centre) == (pytest.approx(3.36e12), pytest.approx(4.2e12))
    assert figure.interval.high == pytest.approx(4.2e12 / 0.9)
    assert figure.noise == pytest.approx(1.4826 / 9)
    assert figure.text == "4200 GB/s"
    assert figure.share_text == "87.5 % of dram peak (data sheet)"


UNKNOWN = make.facts(make.device("cuda:0", "Unheard-of GPU"), make.device("host", "Unheard-of CPU"))


@pytest.mark.parametrize(
    ("first", "shares"),
    [
        ({}, [1.0, 0.5]),
        ({"status": "failed"}, [1.0, 1.0]),  # sets no best
        ({"devices": ("host",)}, [1.0, 1.0]),  # is no best of another device
    ],
)
def test_without_a_spec_the_share_is_of_the_best_of_the_device_in_this_run(first, shares):
    fast = make.result(make.timing(1.0, moved=4e9, limit="dram"), of=make.case("copy"), **first)
    slow = make.result(make.timing(2.0, moved=4e9, limit="dram"), of=make.case("triad"))
    *rows, unlimited = summary.Summary(make.run(fast, slow, make.result(of=make.case("none")), facts=UNKNOWN)).rows()
    assert rows[1].figure.share == shares[1]
    assert rows[1].figure.share_text == f"{100 * shares[1]:.1f} % of dram peak (best of this run)"
    assert (unlimited.figure.share, unlimited.figure.limit, unlimited.figure.share_text) == (None, "", "")


def test_rows_statuses_labels_and_devices_of_a_run_are_told_apart_and_counted():
    results = [
        make.result(of=make.case("a", suite="two")),
        make.result(of=make.case("b", suite="one"), status="skipped"),
        make.result(of=make.case("c", suite="two")),
    ]
    table = summary.Summary(make.run(*results))
    assert [row.result for row in table.rows()] == results
    assert [row.figure is None for row in table.rows()] == [False, True, False]
    assert [(name, [spread.case.name for spread in spreads]) for name, spreads in table.suites()] == [
        ("two", ["a", "c"]),
        ("one", ["b"]),
    ]
    results = [make.result(replicate=index, status=status) for index, status in enumerate(["ok", "ok", "failed"])]
    assert summary.Summary(make.run(*results)).counts() == {"ok": 2, "skipped": 0, "failed": 1, "invalid": 0}
    assert (summary.exit_status(results), summary.exit_status(results[:2]), summary.exit_status([])) == (3, 0, 0)
    assert summary.exit_status([make.result(status=status) for status in ("ok", "skipped", "invalid")]) == 0
    results = [make.result(replicate=index, labels=labels) for index, labels in enumerate([("a",), ("b", "a"), ()])]
    (spread,) = summary.Summary(make.run(*results)).spreads()
    assert spread.labels == ("a", "b")
    results = [make.result(devices=(name,), replicate=index) for index in range(2) for name in ("cuda:0", "cuda:1")]
    spreads = summary.Summary(make.run(*results)).spreads()
    assert [(spread.devices, len(spread.rows)) for spread in spreads] == [(("cuda:0",), 2), (("cuda:1",), 2)]


def replicates(*rows, **fields):
    """Return a run of one case in which each replicate has these samples in seconds, or a status."""
    results = [
        make.result(status=row, cause="crash", replicate=index)
        if isinstance(row, str)
        else make.result(make.timing(*row, **fields), replicate=index)
        for index, row in enumerate(rows)
    ]
    return make.run(*results)


def the_spread(*rows, **fields):
    (spread,) = summary.Summary(replicates(*rows, **fields)).spreads()
    return spread


def test_the_medians_the_noise_and_the_share_of_a_spread_are_those_of_its_processes():
    spread = the_spread((1.0, 1.0, 9.0), (1.2, 1.2, 1.2), (0.8, 0.8, 0.8))
    assert spread.medians == (1.0, 1.2, 0.8)
    assert spread.figure.interval.centre == 1.0
    assert (spread.figure.interval.low, spread.figure.interval.high) == (0.8, 1.2)
    assert spread.between == pytest.approx(0.2), "the standard deviation over the mean, n - 1"
    spread = the_spread((1.0, 1.0, 1.0), (0.9, 1.0, 1.1), (0.5, 1.0, 1.5))
    assert spread.within == spread.figure.noise == pytest.approx(0.14826), "the median of the processes' noise"
    assert spread.between == 0.0
    spread = the_spread((1e-3,), (2e-3,), (1.25e-3,), moved=4.8e9, limit="dram")
    assert spread.figure.share == pytest.approx(0.8), "the median share"
    assert (spread.figure.samples, spread.medians[:2]) == (3, (4.8e12, 2.4e12))


def test_a_spread_counts_only_what_is_ok_and_names_the_worst():
    spread = the_spread((1.0,), "failed", (3.0,), "skipped")
    assert spread.medians == (1.0, 3.0)
    assert spread.statuses == {"ok": 2, "failed": 1, "skipped": 1}
    assert spread.status == "failed"
    assert spread.row.result.status == "ok"


@pytest.mark.parametrize(
    ("rows", "medians"),
    [(((1.0,),), 1), (((1.0,), "failed"), 1), (("failed", "failed"), 0), (("failed", "skipped"), 0)],
)
def test_fewer_than_two_medians_have_no_deviation_between_processes_and_none_has_no_figure(rows, medians):
    spread = the_spread(*rows)
    assert math.isnan(spread.between)
    has_none = not medians
    assert (len(spread.medians), spread.figure is None, math.isnan(spread.within)) == (medians, has_none, has_none)


def test_spreads_of_shuffled_replicates_are_sorted_by_suite_name_and_numbers():
    cases = [make.case("copy", n=n) for n in (16, 2)] + [make.case("add", n=1)]
    results = [make.result(of=of, replicate=replicate) for replicate in (0, 1) for of in cases]
    assert [spread.case.id for spread in summary.Summary(make.run(*results)).spreads()] == [
        "bandwidth/add[n=1]",
        "bandwidth/copy[n=2]",
        "bandwidth/copy[n=16]",
    ]
    alone = summary.Summary(make.run(*results[:3]))
    assert [spread.case for spread in alone.spreads()] == cases, "what was not shuffled stays in the order measured"


def test_items_per_second_have_a_share_of_the_peak_of_their_bytes_or_operations():
    series = Series(
        "graph", "s", (1e-2,), work=Work(moved=2.4e10, items=2), quantity="items", limit="dram", item="token"
    )
    figure = summary.Summary(make.run(make.result(series))).figure(make.result(series), series)
    assert (figure.unit, figure.better, figure.interval.centre) == ("token/s", "more", pytest.approx(200))
    (spec,) = (share for share in figure.shares if share.basis == "spec")
    assert spec.fraction == pytest.approx(0.5)  # 2.4e12 of 4.8e12 B/s
    assert spec.peak == pytest.approx(400)  # tokens per second
    series = Series(
        "hot", "s", (1.0,), work=Work(moved=1, flops=494.5e12, items=1), quantity="items", limit="tensor.float16"
    )
    figure = summary.Summary(make.run(make.result(series))).figure(make.result(series), series)
    assert figure.share == pytest.approx(0.5)


def test_the_secondary_figures_of_a_case_are_its_other_stages_and_its_observed_values():
    measured = make.result(
        make.timing(1e-3, moved=4e9, name="compress.hot", stop="interval"),
        make.timing(2e-3, moved=4e9, name="compress.cold", stop="interval"),
        make.timing(1e-5, name="compress.host"),
        make.timing(5e-4, moved=4e9, name="decompress.hot", stop="interval"),
        make.timing(6e-4, moved=4e9, name="decompress.early"),
        Series("ratio", "", (1.5, 2.5), better="more"),
    )
    expected = [("decompress.hot", "8000 GB/s"), ("ratio", "2.000")]
    for result, secondary in ((measured, expected), (make.result(status="failed"), [])):
        table = summary.Summary(make.run(result))
        (spread,) = table.spreads()
        assert [(figure.name, figure.text) for figure in table.secondary_figures(spread)] == secondary


@pytest.mark.parametrize(("seconds", "beside"), [(1.005e-3, []), (0.9e-3, ["early"])])
def test_samples_from_before_the_device_settled_are_a_secondary_figure_if_they_differ(seconds, beside):
    run = make.run(make.result(make.timing(1e-3, moved=1e9), make.timing(seconds, name="early", moved=1e9)))
    table = summary.Summary(run)
    assert [figure.short for figure in table.secondary_figures(table.spreads()[0])] == beside


@pytest.mark.parametrize(
    ("clocks", "after", "labels"),
    [
        ((1.980e9, 1.965e9), 1.62e9, ("unsettled",)),  # the mean in the window decides
        ((1.605e9, 1.605e9), 1.98e9, ("power-capped", "unsettled")),
        ((1.890e9, 1.950e9), None, ("power-capped", "unsettled")),  # below 97 % of 1980 MHz
        ((), 1.98e9, ("unsettled",)),  # a short window has the clock after its samples alone
        ((), 1.89e9, ("power-capped", "unsettled")),
        ((), None, ("power-capped", "unsettled")),
    ],
)
def test_a_case_is_power_capped_only_if_its_clock_was_below_97_per_cent_of_the_devices_own(clocks, after, labels):
    device = make.device(details=(("clock.sm_hz", "1980000000"),))
    clock = make.counter("nvml.clock.sm", "Hz", "gauge")
    sampled = [Samples("nvml", "cuda:0", (0.1, 0.2)[: len(clocks)], (("nvml.clock.sm", clocks),))] if clocks else []
    capped = make.result(make.timing(1e-3, clock_hz=after), labels=("power-capped", "unsettled"), window=(0.0, 0.3))
    run = make.run(capped, sampled=sampled, facts=make.facts(device), counters=(clock,))
    (row,) = summary.Summary(run).rows()
    assert row.labels == labels
    assert [entry.labels for entry in trend.entries(run)] == [labels]


def test_no_case_of_a_recorded_h200_is_power_capped_at_its_full_clock():
    """The driver named the cap in 31 cases, 17 of them at 1.96 GHz or more, often behind a large product."""
    run = store.read_run(RECORDINGS / "whole/h200.jsonl.gz")
    assert sum("power-capped" in result.labels for result in run.results) == 31
    capped = [row.result.case for row in summary.Summary(run).rows() if "power-capped" in row.labels]
    assert len(capped) == 14
    assert {case.suite for case in capped} == {"bandwidth", "gemm", "inference", "tensor", "virtual"}
    assert "gemm/square[dtype=bfloat16,n=8192]" in {case.id for case in capped}
    assert "gemm/square[dtype=bfloat16,n=2048]" not in {case.id for case in capped}


def test_a_component_of_a_fleet_is_power_capped_only_at_a_lowered_clock():
    device = make.device(details=(("clock.sm_hz", "1980000000"),))
    for clock_hz, states in ((1.965e9, frozenset()), (1.6e9, {"power-capped"}), (None, {"power-capped"})):
        builder = overview.DigestBuilder()
        builder.add(make.manifest(facts=make.facts(device)))
        builder.add(make.result(make.timing(1e-3, clock_hz=clock_hz), labels=("power-capped",)))
        (component,) = builder.digest("node").components
        assert [rate.states for rate in component.rates.values()] == [states]


def test_the_sum_over_the_links_of_several_gpus_is_a_secondary_figure():
    table = summary.Summary(store.read_run(RECORDINGS / "whole/h200x2.jsonl.gz"))
    shown = {
        spread.case.id: [figure.text for figure in table.secondary_figures(spread) if figure.short == "sum"]
        for spread in table.spreads()
        if spread.case.name == "host_link_all"
    }
    assert list(shown.values()) == [["104.4 GB/s"], ["102.5 GB/s"]]
