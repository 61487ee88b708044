"""Write the figures of a run as one JSON document, schema `gpubench.summary/1`."""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from gpubench.api import report as gb

from ._amortisation import amortisation_records
from ._derived import staircase_record, transfer_record
from ._fleet_json import fleet_document
from ._payoffs import payoffs_record
from ._serving import serving_record

SCHEMA = "gpubench.summary/1"
COMPARE_SCHEMA = "gpubench.compare/1"


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
        return _render_document(fleet_document(judgement))


def _render_document(document: dict[str, Any]) -> str:
    """Return the document as JSON with a line for each key and each object in a list, ending with a newline."""
    members = ",\n".join(f" {_dumps(name)}: {_member(value)}" for name, value in document.items())
    return f"{{\n{members}\n}}\n"


def _member(value: Any) -> str:
    """Return a value as JSON; a list of dicts has a line for each dict."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"  {_dumps(item)}" for item in value) + "\n ]"
    return _dumps(value)


def _dumps(value: Any) -> str:
    """Return a value as JSON; raises ValueError for a number that is not finite."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


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
        "devices": [dataclasses.asdict(device) for device in manifest.facts.devices],
        "versions": dict(manifest.facts.versions),
        "spreads": [_spread(spread) for spread in summary.spreads()] if summary.replicated else [],
        "levels": [staircase_record(staircase) for staircase in gb.staircases(summary)],
        "transfers": [transfer_record(view_transfers) for view_transfers in gb.transfers(summary)],
        "payoffs": [payoffs_record(view_payoffs) for view_payoffs in gb.payoffs(summary)],
        "serving": [serving_record(model) for model in gb.servings(summary)],
        "amortisation": list(amortisation_records(summary)),
        "results": [_result(summary, result, spreads[result.key]) for result in summary.run.results],
    }


def _spread(spread: gb.Spread) -> dict[str, Any]:
    """Return the record of a case over its replicates, for the headline in SI units."""
    figure = spread.figure
    return {
        "case": spread.case.id,
        "devices": list(spread.devices),
        "series": figure.name if figure else "",
        "unit": figure.unit if figure else "",
        "better": figure.better if figure else "",
        "median": gb.frame.finite(figure.interval.centre if figure else None),
        **gb.frame.spread_record(spread),
        "medians": [gb.frame.finite(median) for median in spread.medians],
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
        "elapsed_s": gb.frame.finite(result.elapsed_s),
        "energy": gb.frame.energy_record(summary, result),
        "reproducibility": gb.frame.reproducibility_record(summary, spread),
        "joined": _joined(summary, result),
        "figures": list(gb.frame.records(summary, result)),
    }


def _joined(summary: gb.Summary, result: gb.Result) -> dict[str, Any]:
    """Return what the counters say about a result: its bound, memory traffic, and seconds of throttling by reason."""
    counters = gb.case_counters(summary, result)
    uses = counters.bound.evidence if counters.bound else ()
    evidence = [{"by": use.by, "share": gb.frame.finite(use.fraction)} for use in uses]
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
        "runs": [dataclasses.asdict(column) for column in comparison.columns],
        "differences": [
            {"name": difference.name, "values": list(difference.values)} for difference in comparison.differences
        ],
        "against": [
            _against(against, gb.comparison.answer(against, gb.comparison.letter(index)))
            for index, against in enumerate(comparison.against, 1)
        ],
    }


def _against(against: gb.RunComparison, answer: gb.GateAnswer) -> dict[str, Any]:
    """Return the record of one run against the first: verdict, reasons, mean of each suite, a finding for each case."""
    judgement = against.judgement
    return {
        "run": against.name,
        "verdict": answer.verdict,
        "why": list(answer.reasons),
        "next_steps": [dataclasses.asdict(step) for step in answer.next_steps],
        "counts": {str(verdict): count for verdict, count in judgement.counts().items()},
        "geomeans": [dataclasses.asdict(mean) for mean in against.geomeans],
        "missing": [case.id for case in judgement.missing],
        "new": [case.id for case in judgement.new],
        "notes": list(judgement.notes),
        "findings": [_finding(finding) for finding in judgement.findings],
    }


def _finding(finding: gb.Finding) -> dict[str, Any]:
    """Return the record of the verdict on a case; medians are in SI units."""
    low, high = finding.bounds
    return {
        "case": finding.case.id,
        "devices": list(finding.devices),
        "verdict": str(finding.verdict),
        "cause": finding.cause,
        "reason": finding.reason,
        "unit": finding.unit,
        "better": finding.better,
        "before": {"median": gb.frame.finite(finding.before.median), "processes": finding.before.processes},
        "after": {"median": gb.frame.finite(finding.after.median), "processes": finding.after.processes},
        "change": gb.frame.finite(gb.change(finding)),
        "low": gb.frame.finite(low),
        "high": gb.frame.finite(high),
        "threshold": gb.frame.finite(math.expm1(finding.threshold)),
        "q": gb.frame.finite(finding.q),
    }


report: gb.ComparisonReport = JsonReport()
