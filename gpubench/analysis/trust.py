"""Say why the figures of a run should not be trusted, and name the most important other facts about it."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence

from gpubench.analysis.key_figures import KeyValue
from gpubench.analysis.quantities import other_work, slowdowns
from gpubench.analysis.summary import POWER_CAPPED, Summary
from gpubench.base import units
from gpubench.model import SAMPLER, Result, Status

HEALTH_SOURCE = "device health"  # the source of remarks on a sick device and on errors that appeared during the run
STATE_SOURCE = "device state"  # the source of remarks on states because of which no gate refuses a run
_MANY = 0.1  # share of the cases from which a disturbance concerns the whole run
_UNCERTAIN = 0.05  # the half width of a 95 % interval above which a key figure is not worth three digits
_EXPLAINED = {  # the cause of a disturbance, by the label or the reason of a discarded sample
    "shared-device": "other programs used the device",
    "foreign-process": "other programs used the device",
    "loaded": "other programs kept the host busy",
    "migrated": "the system moved threads between NUMA nodes",
    "steal": "other virtual machines took processor time",
    "thermal": "heat slowed the device down",
    "hw-slowdown": "the hardware slowed the device down",
    "power-brake": "the power supply slowed the device down",
    "low-clock": "the clock was low for an unknown reason",
}
_SCATTERING = {  # the cause of a wide interval, by label
    **_EXPLAINED,
    "unsettled": "it still drifted at the end of the measuring time",
    POWER_CAPPED: "the power cap changed its clock",
}
_LIMITING = {  # the clause of a label that limits a whole run
    "unwatched": "throttling of the GPU was not monitored (unwatched)",
    "interposed": "the driver's calls went through another library, which `gpubench doctor` names (interposed)",
}
_FEW = 10  # samples: fewer make a wide interval by themselves
_NAMED = 2  # causes of failures that a clause names; the others are counted
_IMPORTED = "imported, not checked"


def doubts(summary: Summary, values: Sequence[KeyValue]) -> list[str]:
    """Return the reasons not to trust the figures of a run, the worst first; empty if there is none.

    Each is a short clause that names the cause. `values` are the key figures of the run; noise of others is no reason.
    """
    return [
        *_imported(summary),
        *_dry_run(summary),
        *_defects(summary),
        *_sick(summary),
        *_unsampled(summary),
        *(clause for clause, is_doubt in _disturbances(summary, values) if is_doubt),
        *_uncertain(summary, values),
    ]


def trust_text(run_doubts: Sequence[str]) -> str:
    """Return `yes`, `no, because …` with the worst doubt and the number of others, or `imported, not checked`."""
    if not run_doubts or run_doubts[0] == _IMPORTED:
        return _IMPORTED if run_doubts else "yes"
    return f"no, because {run_doubts[0]}{_and_more(len(run_doubts) - 1, 'reason')}"


def trust_brief(run_doubts: Sequence[str]) -> str:
    """Return `yes`, `no, 2 reasons` with the number of doubts, or `imported, not checked`."""
    if not run_doubts or run_doubts[0] == _IMPORTED:
        return trust_text(run_doubts)
    return f"no, {units.count(len(run_doubts), 'reason')}"


def _and_more(count: int, noun: str) -> str:
    """Return `, and 2 more reasons`; empty for none."""
    return f", and {units.count(count, f'more {noun}')}" if count else ""


def limitations(summary: Summary, values: Sequence[KeyValue]) -> list[str]:
    """Return other facts that limit the figures of a run, each as a clause, the most important first.

    `values` are the key figures of the run. The facts are, for example, low figures, power caps and skipped cases."""
    return [
        *_below_expectation(values),
        *_cases_with_status(summary.run.results, "invalid", "without a valid result"),
        *(remark.words for remark in summary.run.remarks if (remark.source, remark.state) == (STATE_SOURCE, "event")),
        *_capped(summary),
        *(clause for clause, is_doubt in _disturbances(summary, values) if not is_doubt),
        *(text for label, text in _LIMITING.items() if any(label in result.labels for result in summary.run.results)),
        *_unsettled(summary),
        *_unchecked(summary),
    ]


def _imported(summary: Summary) -> Iterator[str]:
    devices = summary.run.manifest.facts.devices
    if devices and all(device.backend == "imported" for device in devices):
        yield _IMPORTED


def _defects(summary: Summary) -> Iterator[str]:
    if not any(result.status in ("ok", "failed") for result in summary.run.results):
        yield "nothing was measured"
    if not summary.run.complete:
        yield "the run was interrupted before all cases were measured (`run --resume` continues it)"
    yield from _cases_with_status(summary.run.results, "failed", "failed")
    if impossible := [row for row in summary.rows() if row.impossible]:
        yield f"{units.count(len(impossible))} above the peak of the device"


def _dry_run(summary: Summary) -> Iterator[str]:
    if count := sum("dry-run" in result.labels for result in summary.run.results):
        yield f"{units.count(count)} ran on a stand-in for a GPU, which measures nothing (dry-run)"


def _cases_with_status(results: Iterable[Result], status: Status, verb: str) -> Iterator[str]:
    causes = Tally(result.cause for result in results if result.status == status)
    if causes:
        named = [cause.replace("-", " ") or "no cause given" for cause, _ in causes.most_common(_NAMED)]
        more = _and_more(len(causes) - len(named), "cause")
        yield f"{units.count(causes.total())} {verb} ({', '.join(named)}{more})"


def _sick(summary: Summary) -> Iterator[str]:
    events = (remark for remark in summary.run.remarks if (remark.source, remark.state) == (HEALTH_SOURCE, "event"))
    yield from dict.fromkeys(f"{remark.device} is unhealthy: {remark.words}" for remark in events)


def _unsampled(summary: Summary) -> Iterator[str]:
    if any((remark.source, remark.state) == (SAMPLER, "lost") for remark in summary.run.remarks):
        yield "the sampler died during the run, so counters are missing"


def _disturbances(summary: Summary, values: Sequence[KeyValue]) -> Iterator[tuple[str, bool]]:
    measured = [result for result in summary.run.results if result.status == "ok"]
    key = {(value.case_id, value.devices) for value in values}
    for disturbances in (other_work, slowdowns):
        cases = {result.key: causes for result in measured if (causes := disturbances(result))}
        is_key = any(place[:2] in key for place in cases)
        if is_key or len(cases) >= _MANY * len(measured) > 0:
            names = Tally(name for causes in cases.values() for name in causes)
            ((first, _),) = names.most_common(1)
            explained = f"{_EXPLAINED[first]} ({first}){_and_more(len(names) - 1, 'cause')}"
            yield f"in {len(cases)} of {len(measured)} cases {explained}", is_key or not key


def _uncertain(summary: Summary, values: Sequence[KeyValue]) -> Iterator[str]:
    """Yield a clause on the key figure with the widest 95 % interval, if that is wider than ± 5 %, with its cause."""
    wide = [value for value in values if value.figure.samples > 1 and value.figure.interval.half_width > _UNCERTAIN]
    if wide:
        worst = max(wide, key=lambda value: value.figure.interval.half_width)
        width = units.percent(worst.figure.interval.half_width, 0)
        more = _and_more(len(wide) - 1, "key figure")
        yield f"{worst.title} is uncertain by ± {width} ({_cause_of_scatter(summary, worst)}){more}"


def _cause_of_scatter(summary: Summary, value: KeyValue) -> str:
    """Return why the interval of a key figure is wide, from the labels and the numbers behind it."""
    place = (value.case_id, value.devices)
    labels = {
        label for spread in summary.spreads() if (spread.case.id, spread.devices) == place for label in spread.labels
    }
    labelled = [text for label, text in _SCATTERING.items() if label in labels]
    if labelled:
        return labelled[0]
    if value.figure.processes > 1:
        return f"its {value.figure.processes} processes differ"
    return f"only {value.figure.samples} samples" if value.figure.samples < _FEW else "no known cause"


def _below_expectation(values: Sequence[KeyValue]) -> Iterator[str]:
    for value in values:
        if value.is_below_expectation and value.floor and value.of_expected is not None:
            expected = units.quantity(value.floor.expected, value.floor.unit)
            reached = units.percent(value.of_expected, 0)
            verb = "reaches" if value.floor.better == "more" else "takes"
            yield f"{value.title} {verb} {reached} of the {expected} expected of this model"


def _capped(summary: Summary) -> Iterator[str]:
    measured = [result for result in summary.run.results if result.status == "ok"]
    capped = [result for result in measured if POWER_CAPPED in result.labels]
    if not capped:
        return
    means = (summary.core_clock(result, device_id) for result in capped for device_id in result.devices)
    clocks = [clock_hz for clock_hz in means if clock_hz]
    down = f": the clock fell to {units.quantity(min(clocks), 'Hz')}" if clocks else ""
    yield f"the power cap limited {len(capped)} of {len(measured)} cases{down}"


def _unsettled(summary: Summary) -> Iterator[str]:
    count = sum("unsettled" in result.labels for result in summary.run.results)
    if count:
        yield f"{units.count(count)} still drifted at the end of the measuring time (unsettled)"


def _unchecked(summary: Summary) -> Iterator[str]:
    """Yield one clause with the number of cases, if any, whose answers nothing checks."""
    count = sum("unchecked" in result.labels for result in summary.run.results)
    if count:
        yield f"nothing checks the answers of {units.count(count)} (unchecked)"


def skips(summary: Summary) -> list[str]:
    """Return clauses on the skipped cases with the reasons, missing libraries first."""
    return list(_skipped(summary.run.results))


def _skipped(results: Iterable[Result]) -> Iterator[str]:
    skipped = [result for result in results if result.status == "skipped"]
    missing = Tally(result.reason for result in skipped if result.cause == "missing")
    for reason, count in missing.most_common():
        yield f"{units.count(count)} skipped: {reason}"
    other_reasons = Tally(result.reason for result in skipped if result.cause != "missing")
    if other_reasons:
        (reason, _), *rest = other_reasons.most_common()
        more = f" (and {units.count(len(rest), 'more reason')})" if rest else ""
        yield f"{units.count(other_reasons.total())} skipped: {reason}{more}"
