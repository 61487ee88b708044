"""Build the head of a run's page: the overview as texts, and the key figures with links to their cases."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure as texts, which are empty if unknown.

    `bar` is its share of the data sheet's peak in per cent, from 0 to 100; None if that is unknown."""

    title: str
    device: str
    text: str
    of_spec: str
    bar: float | None
    of_expected: str
    is_below: bool
    link: str


@dataclass(frozen=True, slots=True)
class SuiteLink:
    """A suite in one line with a link to its section.

    `ended` counts its cases by status, `seconds` is their duration as text."""

    name: str
    link: str
    summary: str
    ended: str
    seconds: str


@dataclass(frozen=True, slots=True)
class Head:
    """The first part of a run's page.

    `trust` says whether the figures can be trusted, and `note` explains the shares."""

    devices: tuple[str, ...]
    conditions: tuple[str, ...]
    trust: str
    is_trusted: bool
    tiles: tuple[Tile, ...]
    note: str
    limitations: tuple[str, ...]
    suites: tuple[SuiteLink, ...]


def head(summary: gb.Summary) -> Head:
    """Return the head of the page of a run: its overview as texts, with links to the cases and suites."""
    run_overview, anchors = gb.overview(summary), Anchors.of(summary)
    tiles = tuple(_tile(value, anchors) for value in run_overview.values)
    return Head(
        run_overview.devices or ("No device",),
        run_overview.conditions,
        trust_text(run_overview),
        not run_overview.doubts,
        tiles,
        key_note(run_overview),
        run_overview.limitations,
        tuple(
            SuiteLink(line.name, f"#{suite_anchor(line.name)}", line.summary, line.ended, seconds_text(line.seconds))
            for line in run_overview.suites
        ),
    )


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


def _tile(value: gb.KeyValue, anchors: Anchors) -> Tile:
    """Return a key figure as texts, with a link to its case; its devices are named if the anchors contain devices."""
    spec = value.of_spec
    return Tile(
        value.title,
        "+".join(value.devices) if anchors.with_devices else "",
        value.figure.text,
        share_text(spec),
        round(min(max(100 * spec, 0.0), 100.0), 1) if spec is not None else None,
        share_text(value.of_expected),
        value.is_below_expectation,
        link(anchors.case(value.case_id, value.devices)),
    )


def suite_anchor(name: str) -> str:
    """Return the anchor of the section of the suite `name`."""
    return "suite-" + "_".join(name.split())


def link(anchor: str) -> str:
    """Return the address of an anchor in the same page: `#` and the quoted anchor."""
    return f"#{quote(anchor, safe='/,=@+:')}"
