"""Explanations of a verdict other than the code: other work beside a side, and the clock that a figure depends on."""

import math

import _make as make
import pytest
from _sides import TRIAD, evidence, noisy, percent

from gpubench.judging.evidence import Evidence, Reading
from gpubench.judging.judge import judge, settled
from gpubench.model import Verdict

QUIET = 0.001  # the standard deviation between processes
COUNTERS = {"clock.sm": "nvml.clock.sm", "clock.memory": "nvml.clock.memory"}


def only_finding(before, after):
    (finding,) = judge(before, after, percent(2.0)).findings
    return finding


# ---- other work beside either side


def evidence_beside_work(values, disturbed, labels=("loaded",), discarded=()):
    results = [
        make.result(
            make.timing(*[value] * 90),
            of=TRIAD,
            replicate=index,
            labels=labels if index < disturbed else (),
            discarded=discarded if index < disturbed else (),
        )
        for index, value in enumerate(values)
    ]
    return Evidence([[Reading.of(make.run(*results))]])


@pytest.mark.parametrize("label", ["shared-device", "loaded", "migrated"])
def test_a_small_slow_down_beside_other_work_on_both_sides_is_inconclusive(label):
    """A two-core host that is always busy: the same code was called slower in five of six verdicts."""
    before, after = (evidence_beside_work(noisy(centre, QUIET), 5, (label,)) for centre in (1.0, 1.04))
    finding = only_finding(before, after)
    assert (finding.verdict, finding.cause) == (Verdict.SUSPECT, "contended")
    assert finding.reason == (
        f"other work disturbed 5 of 5 baseline processes and 5 of 5 candidate processes ({label}): "
        "from a third of a side on, no change is judged"
    )
    assert [f.verdict for f in settled(judge(before, after, percent(2.0))).findings] == [Verdict.INCONCLUSIVE]


@pytest.mark.parametrize(
    ("medians", "disturbed", "verdict", "cause"),
    [
        *[((1.0, 1.04), disturbed, "suspect", "contended") for disturbed in ((2, 0), (0, 2), (5, 0))],
        *[((1.0, 1.1), disturbed, "slower", "contended") for disturbed in ((2, 0), (0, 2), (5, 5))],
        ((1.0, 1.1), (1, 1), "slower", ""),
        ((1.4, 1.0), (5, 0), "inconclusive", "contended"),
        ((1.0, 1.0005), (5, 5), "same", ""),
    ],
)
def test_from_a_third_of_a_side_on_other_work_explains_changes_within_its_bound(medians, disturbed, verdict, cause):
    sides = (evidence_beside_work(noisy(m, QUIET), count) for m, count in zip(medians, disturbed, strict=True))
    finding = only_finding(*sides)
    assert (finding.verdict, finding.cause) == (verdict, cause)


def test_other_work_explains_what_it_did_to_processes_of_the_baseline():
    before = [
        make.result(make.timing(value), of=TRIAD, replicate=index, labels=("loaded",) if index < 3 else ())
        for index, value in enumerate([*noisy(1.12, QUIET, 3), *noisy(1.0, QUIET, 5)])
    ]
    finding = only_finding(Evidence([[Reading.of(make.run(*before))]]), evidence_beside_work(noisy(1.14, QUIET), 5))
    assert (finding.verdict, finding.cause) != (Verdict.SLOWER, "")


@pytest.mark.parametrize(
    ("reason", "count", "cause"), [("steal", 10, "contended"), ("steal", 9, ""), ("warm-up", 60, "")]
)
def test_a_process_that_lost_a_tenth_of_its_samples_to_steal_counts_as_disturbed(reason, count, cause):
    """90 samples were kept; discards for other reasons do not count as other work."""
    after = evidence_beside_work(noisy(1.1, QUIET), 5, labels=(), discarded=((reason, count),))
    assert only_finding(evidence(*noisy(1.0, QUIET)), after).cause == cause


# ---- the clock


def evidence_at_clocks(seconds, hertz, limit="", counted=None, **fields):
    """Evidence of processes of these times, with the clock that each read after its samples (None: none).

    `counted` is a column of the sampling process, by name: one reading in the window of each process.
    """
    results = [
        make.result(
            make.timing(value, limit=limit, clock_hz=clock_hz),
            of=TRIAD,
            replicate=index,
            window=(index, index + 0.9),
            **fields,
        )
        for index, (value, clock_hz) in enumerate(zip(seconds, hertz, strict=True))
    ]
    columns = counted or {}
    sampled = [make.samples([index + 0.5 for index in range(len(seconds))], **columns)] if columns else []
    counters = tuple(make.counter(COUNTERS[name], "Hz", "gauge", 0.1, "nvidia-smi") for name in columns)
    return Evidence([[Reading.of(make.run(*results, sampled=sampled, counters=counters))]])


def same_clock(hertz, count=5):
    return noisy(hertz, 1e-4, count)


FAST_HZ, SLOW_HZ = 1.98e9, 1.8e9
SEVERAL = noisy(1.0, QUIET)


@pytest.mark.parametrize("limit", ["", "tensor.float16", "float32", "shared", "l2"])
def test_a_slow_down_by_a_lower_clock_is_inconclusive_without_any_counter(limit):
    before = evidence_at_clocks(SEVERAL, same_clock(FAST_HZ), limit)
    after = evidence_at_clocks(noisy(1.1, QUIET), same_clock(SLOW_HZ), limit)
    finding = only_finding(before, after)
    assert (finding.verdict, finding.cause) == (Verdict.SUSPECT, "clock")
    text = "the clock went from 1.980 GHz to 1.800 GHz; counted in cycles, it is not slower by the threshold"
    assert finding.reason == text
    (last,) = settled(judge(before, after, percent(2.0))).findings
    assert (last.verdict, last.cause) == (Verdict.INCONCLUSIVE, "clock")


@pytest.mark.parametrize(("seconds", "hertz"), [(1.2, SLOW_HZ), (1.1, FAST_HZ)])
def test_a_case_that_is_slower_in_cycles_too_is_slower(seconds, hertz):
    after = evidence_at_clocks(noisy(seconds, QUIET), same_clock(hertz), labels=("power-capped",))
    assert only_finding(evidence_at_clocks(SEVERAL, same_clock(FAST_HZ)), after).verdict is Verdict.SLOWER


@pytest.mark.parametrize("limit", ["dram", "link.h2d", "link.peer"])
def test_a_lower_clock_of_the_compute_units_excuses_no_loss_of_memory_or_links(limit):
    finding = only_finding(
        evidence_at_clocks(SEVERAL, same_clock(FAST_HZ), limit),
        evidence_at_clocks(noisy(1.1, QUIET), same_clock(SLOW_HZ), limit),
    )
    assert (finding.verdict, finding.reason) == (Verdict.SLOWER, "")


@pytest.mark.parametrize(
    ("fields", "text"),
    [({}, "1.800 GHz; counted"), ({"labels": ("power-capped",)}, "1.800 GHz (power-capped on one side only); counted")],
)
def test_the_reason_names_a_power_cap_on_one_side(fields, text):
    after = evidence_at_clocks(noisy(1.1, QUIET), same_clock(SLOW_HZ), **fields)
    assert text in only_finding(evidence_at_clocks(SEVERAL, same_clock(FAST_HZ)), after).reason


def test_a_lower_clock_of_the_memory_explains_a_loss_of_bandwidth():
    before = evidence_at_clocks(SEVERAL, same_clock(FAST_HZ), "dram", {"clock.memory": same_clock(3.2e9)})
    after = evidence_at_clocks(noisy(1.1, QUIET), same_clock(FAST_HZ), "dram", {"clock.memory": same_clock(2.9e9)})
    finding = only_finding(before, after)
    assert (finding.verdict, finding.cause) == (Verdict.SUSPECT, "clock")
    assert finding.reason.startswith("the memory clock went from 3.200 GHz to 2.900 GHz; ")


@pytest.mark.parametrize(
    ("seconds", "hertz", "verdict", "cause"),
    [(1 / 1.1, FAST_HZ, "inconclusive", "clock"), *[(0.8, hertz, "faster", "") for hertz in (FAST_HZ, SLOW_HZ, 1.7e9)]],
)
def test_a_case_is_faster_only_where_it_is_faster_in_cycles_too(seconds, hertz, verdict, cause):
    after = evidence_at_clocks(noisy(seconds, QUIET), same_clock(hertz))
    finding = only_finding(evidence_at_clocks(SEVERAL, same_clock(SLOW_HZ)), after)
    assert (finding.verdict, finding.cause) == (verdict, cause)


@pytest.mark.parametrize("seconds", [1.0, 1.0005, 1.012, 0.995])
def test_slower_code_that_a_faster_clock_hides_is_slower(seconds):
    """The same time at a clock that is 10 % higher is 10 % more cycles."""
    before = evidence_at_clocks(SEVERAL, same_clock(SLOW_HZ), "tensor.float16")
    finding = only_finding(before, evidence_at_clocks(noisy(seconds, 2 * QUIET), same_clock(FAST_HZ), "tensor.float16"))
    assert (finding.verdict, finding.cause) == (Verdict.SLOWER, "clock")
    more = math.expm1(math.log(seconds * FAST_HZ / SLOW_HZ))
    assert finding.reason == (
        "the clock went from 1.800 GHz to 1.980 GHz and hides a slow-down; "
        f"counted in cycles, it is {100 * more:.1f} % slower"
    )


@pytest.mark.parametrize(
    ("limit", "labels"),
    [
        *[(limit, ()) for limit in ("", "l2", "dram", "link.h2d")],
        *[("tensor.float16", (label,)) for label in ("power-capped", "loaded")],
    ],
)
def test_a_faster_clock_is_no_objection_to_memory_links_and_latencies_nor_under_a_power_cap_or_load(limit, labels):
    """A latency of memory lasts as long at any clock of the compute units, and takes more cycles of a fast one.

    Under the power cap, code that draws less power has a faster clock, so a comparison by cycles would be unfair.
    """
    after = evidence_at_clocks(noisy(1.0, 2 * QUIET), same_clock(FAST_HZ), limit, labels=labels)
    assert only_finding(evidence_at_clocks(SEVERAL, same_clock(SLOW_HZ), limit), after).verdict is Verdict.SAME


def test_cycles_with_a_wide_scatter_make_no_case_slower():
    """Clocks that differ by ± 3 % between processes: the cycles of the same code do, too."""
    before = evidence_at_clocks(SEVERAL, noisy(SLOW_HZ, 0.03), "tensor.float16")
    after = evidence_at_clocks(noisy(1.0, 2 * QUIET), noisy(1.05 * SLOW_HZ, 0.03), "tensor.float16")
    assert only_finding(before, after).verdict is Verdict.SAME


@pytest.mark.parametrize(("missing", "cause"), [(1, "clock"), (2, "clock"), (3, "")])
def test_the_objection_by_clock_needs_clocks_of_half_of_the_processes(missing, cause):
    hertz = [*[None] * missing, *same_clock(SLOW_HZ)[missing:]]
    finding = only_finding(
        evidence_at_clocks(SEVERAL, same_clock(FAST_HZ)), evidence_at_clocks(noisy(1.1, QUIET), hertz)
    )
    assert finding.cause == cause


@pytest.mark.parametrize(
    ("before_hz", "reason"), [(FAST_HZ, ""), (None, "the clock went from 1.900 GHz to 1.720 GHz; counted")]
)
def test_clocks_read_by_the_workers_are_preferred_to_counters_unless_a_side_has_none(before_hz, reason):
    """The sampling process also reads while the case is built and checked, when the device may be idle."""
    before = evidence_at_clocks(SEVERAL, [before_hz] * 5, counted={"clock.sm": same_clock(1.9e9)})
    after = evidence_at_clocks(noisy(1.1, QUIET), [FAST_HZ] * 5, counted={"clock.sm": same_clock(1.72e9)})
    assert only_finding(before, after).reason.partition(" in cycles")[0] == reason
