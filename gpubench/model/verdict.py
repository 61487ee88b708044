"""Describe the JSON of a gate's verdict (`gate --json`, `ab --json`), from which its JSON Schema follows."""

from typing import Any, Literal, get_args

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from gpubench.model.run import Better, Verdict
from gpubench.model.schema import identified

# regression: the code; other method: the figures count different work; hardware: another card, driver, clock or state
# of the machine; noise: too little to decide; contention: other programs; failure: there is no figure to compare.
Reason = Literal["regression", "other method", "hardware", "noise", "contention", "failure"]
_Schema = Literal["gpubench.verdict/1"]
VERDICT_SCHEMA: _Schema = get_args(_Schema)[0]


class VerdictStep(TypedDict):
    """A recommended next step, with its command if there is one."""

    words: str
    command: str


class SideRecord(TypedDict):
    """The median of the processes of a side in SI units, and their number."""

    median: float | None
    processes: int


class FindingRecord(TypedDict):
    """The verdict on one case; changes and thresholds are fractions. A case that passes has no `reason`."""

    case: str
    devices: list[str]
    verdict: Verdict
    reason: Reason | None
    cause: str
    words: str
    required: bool
    unit: str
    better: Better
    baseline: SideRecord
    candidate: SideRecord
    change: float | None
    change_low: float | None
    change_high: float | None
    threshold: float | None
    p: float | None
    q: float | None


class VerdictRecord(TypedDict):
    """The answer of a gate; `status` is its exit status."""

    schema: _Schema
    title: str
    status: int
    verdict: str
    why: list[str]
    next_steps: list[VerdictStep]
    counts: dict[Verdict, int]
    findings: list[FindingRecord]
    missing: list[str]
    new: list[str]
    unmet: list[str]
    notes: list[str]


VERDICT = TypeAdapter(VerdictRecord)


def verdict_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a verdict."""
    return identified(VERDICT_SCHEMA, VERDICT.json_schema())
