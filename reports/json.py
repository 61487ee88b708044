"""Write the figures of a run as one JSON document, schema `gpubench.summary/1`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

SCHEMA = "gpubench.summary/1"
COMPARE_SCHEMA = "gpubench.compare/1"
FLEET_SCHEMA = "gpubench.fleet-judgement/1"


@dataclass(frozen=True, slots=True)
class JsonReport:
    """Writes one JSON document; a figure that is not a finite number is null."""

    summary: str = "the figures as one JSON document, for programs"

    def render(self, run: gb.Run) -> str:
        """Return the figures of a run as JSON, one result per line, which ends with a newline."""
        return _render_document(_document(gb.Summary(run)))

    def compare(self, comparison: gb.Comparison) -> str:
        """Return a comparison of runs as JSON, schema `gpubench.compare/1`, which ends with a newline."""
        return _render_document(_comparison(comparison))

    def fleet(self, judgement: gb.FleetJudgement) -> str:
        """Return the judgement of a fleet as JSON, schema `gpubench.fleet-judgement/1`, which ends with a newline."""
        return _render_document(_fleet(judgement))


def _render_document(document: dict[str, Any]) -> str:
    members = ",\n".join(f" {_dumps(name)}: {_member(value)}" for name, value in document.items())
    return f"{{\n{members}\n}}\n"


def _member(value: Any) -> str:
    if isinstance(value, Iterator) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        lines = [f"  {_dumps(item)}" for item in value]
        return "[\n" + ",\n".join(lines) + "\n ]" if lines else "[]"
    return _dumps(value)


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _document(summary: gb.Summary) -> dict[str, Any]:
    """Return the figures of a run as plain values; docs/reports.md describes the fields."""
    manifest = summary.run.manifest
    spreads = {row.result.key: spread for spread in summary.spreads() for row in spread.rows}
    return {
        "schema": SCHEMA,
        "gpubench": manifest.gpubench,
        "started": manifest.started,
        "complete": summary.run.complete,
        "counts": summary.counts(),
        "warnings": list(summary.run.messages),
        "devices": gb.record(manifest.facts.devices),
        "versions": dict(manifest.facts.versions),
        "spreads": [_spread(spread) for spread in summary.spreads()] if summary.replicated else [],
        "levels": gb.record(gb.derived(summary, gb.Staircase)),
        "transfers": gb.record(gb.derived(summary, gb.Transfers)),
        "payoffs": gb.record(gb.derived(summary, gb.Payoffs)),
        "serving": gb.record([model for view in gb.derived(summary, gb.Servings) for model in view.models]),
        "amortisation": gb.record([item for view in gb.derived(summary, gb.Amortisation) for item in view.operators]),
        "results": (_result(summary, result, spreads[result.key]) for result in summary.run.results),
    }


def _spread(spread: gb.Spread) -> dict[str, Any]:
    figure = spread.figure
    return {
        "case": spread.case.id,
        "devices": list(spread.devices),
        "series": figure.name if figure else "",
        "unit": figure.unit if figure else "",
        "better": figure.better if figure else "",
        "median": gb.record(figure.interval.centre if figure else None),
        **gb.frame.spread_record(spread),
        "medians": gb.record(spread.medians),
    }


def _result(summary: gb.Summary, result: gb.Result, spread: gb.Spread) -> dict[str, Any]:
    """Return the record of a result with its figures, as docs/reports.md describes it."""
    case = result.case
    return {
        "case": case.id,
        "suite": case.suite,
        "name": case.name,
        "params": dict(case.params),
        "version": case.version,
        "devices": list(result.devices),
        "replicate": result.replicate,
        "status": result.status,
        "cause": result.cause,
        "reason": result.reason,
        "labels": list(result.labels),
        "above_peak": [impossible.series for impossible in summary.impossible_shares(result)],
        "discarded": dict(result.discarded),
        "notes": dict(result.notes),
        "elapsed_s": gb.record(result.elapsed_s),
        "energy": gb.frame.energy_record(summary, result),
        "reproducibility": gb.record(summary.reproducibility(spread)),
        "joined": _joined(summary, result),
        "figures": list(gb.frame.records(summary, result)),
    }


def _joined(summary: gb.Summary, result: gb.Result) -> dict[str, Any]:
    """Return what the counters say about a result: its bound, memory traffic, and seconds of throttling by reason."""
    counters = gb.case_counters(summary, result)
    uses = counters.bound.evidence if counters.bound else ()
    evidence = [{"by": use.by, "share": gb.record(use.fraction)} for use in uses]
    record = gb.frame.counter_record(counters)
    return {
        **record,
        "evidence": evidence,
        "throttled_s": {reason.name: reason.seconds for reason in counters.throttled},
    }


def _comparison(comparison: gb.Comparison) -> dict[str, Any]:
    """Return a comparison as plain values; its first run is the one with which the others are compared."""
    return {
        "schema": COMPARE_SCHEMA,
        "runs": gb.record(comparison.columns),
        "differences": gb.record(comparison.differences),
        "against": [
            _against(against, gb.comparison.letter(index)) for index, against in enumerate(comparison.against, 1)
        ],
    }


def _against(against: gb.comparison.RunComparison, name: str) -> dict[str, Any]:
    judgement, answer = against.judgement, gb.comparison.answer(against, name)
    return {
        "run": against.name,
        "verdict": answer.verdict,
        "why": list(answer.reasons),
        "next_steps": gb.record(answer.next_steps),
        "counts": gb.record(judgement.counts()),
        "geomeans": gb.record(against.geomeans),
        "missing": [case.id for case in judgement.missing],
        "new": [case.id for case in judgement.new],
        "notes": list(judgement.notes),
        "findings": gb.record(judgement.findings),
    }


def _fleet(judgement: gb.FleetJudgement) -> dict[str, Any]:
    """Return the whole judgement of a fleet as plain values, as in docs/fleet.md."""
    fleet = judgement.fleet
    return {
        "schema": FLEET_SCHEMA,
        "gpubench": fleet.gpubench,
        "answer": gb.fleet_text.fleet_answer(judgement),
        "next": gb.fleet_text.next_steps_text(judgement),
        "compared_with": list(judgement.bases),
        "launcher": fleet.launcher,
        "started": fleet.started,
        "elapsed_s": gb.record(fleet.seconds),
        "nodes_at_once": fleet.at_once,
        "notes": list(judgement.notes),
        "nodes": gb.record(fleet.nodes, {"seconds": "elapsed_s"}),
        "again": gb.record(fleet.again, {"seconds": "elapsed_s"}),
        "failures": gb.record(judgement.failures),
        "too_fast": gb.record(judgement.fast),
        "suspects": gb.record(judgement.suspects),
        "groups": gb.record(judgement.groups),
        "components": gb.record(judgement.standings),
    }


report = JsonReport()
