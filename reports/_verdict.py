"""Build the head of a run's page: the overview as texts, and the key figures with links to their cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpubench.api import report as gb

EXPECTED_NOTE = (
    "Of data sheet: the share of the peak in the vendor's data sheet. Of expected: compared with what this model of "
    "GPU reached on other machines."
)
DATA_SHEET_NOTE = "Of data sheet: the share of the peak in the vendor's data sheet."


@dataclass(frozen=True, slots=True)
class Anchors:
    """The rule that names the anchors of cases in a page: their ids, with their devices if `with_devices`."""

    with_devices: bool

    @classmethod
    def of(cls, summary: gb.Summary) -> Anchors:
        """Return the rule for a run: the anchors contain the devices if the run has several device sets."""
        return cls(len({result.devices for result in summary.run.results}) > 1)

    def case(self, case_id: str, devices: tuple[str, ...]) -> str:
        """Return the anchor of a case: `gemm/square[n=64]@cuda:0`, with `_` for white space."""
        where = f"@{'+'.join(devices)}" if devices and self.with_devices else ""
        return "_".join(f"{case_id}{where}".split())


def head(summary: gb.Summary) -> dict[str, Any]:
    """Return the head of the page of a run: its overview as texts, with links to the cases and suites."""
    run_overview, anchors = gb.overview(summary), Anchors.of(summary)
    return {
        "devices": run_overview.devices or ("No device",),
        "conditions": run_overview.conditions,
        "trust": trust_text(run_overview),
        "is_trusted": not run_overview.doubts,
        "tiles": [_tile(value, anchors) for value in run_overview.values],
        "note": key_note(run_overview),
        "limitations": run_overview.limitations,
        "suites": [(line, f"#{suite_anchor(line.name)}", seconds_text(line.seconds)) for line in run_overview.suites],
    }


def trust_text(run_overview: gb.Overview) -> str:
    """Return `Trustworthy: yes`, or `Trustworthy: no, because …`."""
    return run_overview.trust[:1].upper() + run_overview.trust[1:]


def key_note(run_overview: gb.Overview) -> str:
    """Return the sentences on what the shares of the key figures refer to; empty if no figure has a share."""
    if run_overview.has_expectations:
        return EXPECTED_NOTE
    return DATA_SHEET_NOTE if any(value.of_spec is not None for value in run_overview.values) else ""


def has_several_devices(run_overview: gb.Overview) -> bool:
    """Return True if the key figures are of more than one device, so that each must name its device."""
    return len({value.devices[:1] for value in run_overview.values}) > 1


def share_text(share: float | None) -> str:
    """Return a share (a fraction) in per cent; empty for None."""
    return gb.units.percent(share) if share is not None else ""


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds as text; empty unless it is positive."""
    return gb.units.duration(seconds) if seconds > 0 else ""


def _tile(value: gb.KeyValue, anchors: Anchors) -> dict[str, Any]:
    """Return a key figure as texts; `bar` is its share of the data sheet's peak in per cent, None if unknown."""
    spec = value.of_spec
    return {
        "title": value.title,
        "device": "+".join(value.devices) if anchors.with_devices else "",
        "text": value.figure.text,
        "of_spec": share_text(spec),
        "bar": round(min(max(100 * spec, 0.0), 100.0), 1) if spec is not None else None,
        "of_expected": share_text(value.of_expected),
        "is_below": value.is_below_expectation,
        "link": link(anchors.case(value.case_id, value.devices)),
    }


def suite_anchor(name: str) -> str:
    """Return the anchor of the section of the suite `name`."""
    return "suite-" + "_".join(name.split())


def link(anchor: str) -> str:
    """Return the address of an anchor in the same page: `#` and the quoted anchor."""
    return f"#{quote(anchor, safe='/,=@+:')}"
