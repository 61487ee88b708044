"""The head of a page as its template takes it: the overview of the run in texts, each with a link to its case."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from gpubench.api.report import KeyValue, Overview, Summary, overview, units

EXPECTED_NOTE = (
    "Of data sheet: the share of the peak in the vendor's data sheet. Of expected: compared with what this model of "
    "GPU reached on other machines."
)
DATA_SHEET_NOTE = "Of data sheet: the share of the peak in the vendor's data sheet."


@dataclass(frozen=True, slots=True)
class Anchors:
    """The names of the places of cases in a page: their ids, with their devices where the run has several sets."""

    with_devices: bool

    @classmethod
    def of(cls, summary: Summary) -> Anchors:
        """Return the names for the cases of a run."""
        return cls(len({result.devices for result in summary.run.results}) > 1)

    def case(self, case_id: str, devices: tuple[str, ...]) -> str:
        """Return the name of the place of a case."""
        where = f"@{'+'.join(devices)}" if devices and self.with_devices else ""
        return "_".join(f"{case_id}{where}".split())


@dataclass(frozen=True, slots=True)
class Tile:
    """A key figure; a text is empty where it is unknown. `bar` is the data sheet's share in per cent, 100 at most."""

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
    """A suite in one line, with the place of its section."""

    name: str
    link: str
    summary: str
    ended: str
    seconds: str


@dataclass(frozen=True, slots=True)
class Head:
    """What the page says first."""

    devices: tuple[str, ...]
    conditions: tuple[str, ...]
    trust: str
    is_trusted: bool
    tiles: tuple[Tile, ...]
    note: str
    matters: tuple[str, ...]
    suites: tuple[SuiteLink, ...]


def head(summary: Summary) -> Head:
    """Return the head of the page of a run."""
    found, anchors = overview(summary), Anchors.of(summary)
    tiles = tuple(_tile(value, anchors) for value in found.values)
    return Head(
        found.devices or ("No device",),
        found.conditions,
        trust_words(found),
        not found.doubts,
        tiles,
        key_note(found),
        found.matters,
        tuple(
            SuiteLink(line.name, f"#{suite_anchor(line.name)}", line.summary, line.ended, seconds_words(line.seconds))
            for line in found.suites
        ),
    )


def trust_words(found: Overview) -> str:
    """`Trustworthy: yes`, or `Trustworthy: no, because …`."""
    return found.trust[:1].upper() + found.trust[1:]


def key_note(found: Overview) -> str:
    """What the shares of the key figures are of; empty where there is no share."""
    if found.has_expectations:
        return EXPECTED_NOTE
    return DATA_SHEET_NOTE if any(value.of_spec is not None for value in found.values) else ""


def has_several_devices(found: Overview) -> bool:
    """Whether key figures are of more than one device, so that each has to say which."""
    return len({value.devices[:1] for value in found.values}) > 1


def share_text(share: float | None) -> str:
    """A share in per cent, or nothing."""
    return units.percent(share) if share is not None else ""


def seconds_words(seconds: float) -> str:
    """How long the cases of a suite took, or nothing where none was timed."""
    return units.duration(seconds) if seconds > 0 else ""


def _tile(value: KeyValue, anchors: Anchors) -> Tile:
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
    """The name of a suite's section in a page."""
    return "suite-" + "_".join(name.split())


def link(anchor: str) -> str:
    """The address of a place within the page."""
    return f"#{quote(anchor, safe='/,=@+:')}"
