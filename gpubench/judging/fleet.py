"""Hold the judgement of a fleet: which GPU, node or link is slow, how certain that is, and what explains it.

`judging.fleet_rule` makes it; reports and publications show it. docs/fleet.md explains the rule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from gpubench.analysis.overview import ComponentKind
from gpubench.model import Better
from gpubench.model.fleet import Fleet
from gpubench.model.limits import Word

# suspect: found once; confirmed: found again in a second measurement; transient: not found again.
SuspectState = Literal["confirmed", "suspect", "transient"]
StandingState = Literal["ok", "confirmed", "suspect", "transient", "not compared"]
_WORST_FIRST: tuple[SuspectState, ...] = ("confirmed", "suspect", "transient")
Basis = Literal["others", "baseline", "floor"]
CauseKind = Literal["thermal", "power", "clock", "link width", "health", "other programs", "NUMA", "device", "setting"]


@dataclass(frozen=True, slots=True)
class SlowCause:
    """An explanation of a slow component: causes are counted by `kind`, and `text` is a clause."""

    kind: CauseKind
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a component: the name of its node and its devices there.

    A link between nodes has no `node`, and the names of both nodes as `devices`."""

    node: str
    devices: tuple[Word, ...]

    @property
    def text(self) -> str:
        """`gpu07 cuda:3`, of a link `gpu07 cuda:0 to cuda:1`, of a link between nodes `gpu07 to gpu08`."""
        return f"{self.node} {' to '.join(self.devices)}".strip()


@dataclass(frozen=True, slots=True)
class FleetFinding:
    """A component that is slow in one case, or in all cases of a family together; then `case` is empty.

    `basis` says what it was compared with. `slowdown` is the missing fraction of the expected rate: 0.03 is 3 % slow.
    `detectable` is the smallest slowdown that the rule would have found. `again` is the slowdown in the second
    measurement, NaN without one. `expected` is the median of the other components, the baseline, or the floor; `value`
    and `expected` are in SI units, NaN for a family."""

    RECORD: ClassVar[str] = (
        "*place kind family case compared_with=basis state slowdown_fraction=slowdown "
        "smallest_detectable_fraction=detectable value expected unit better slowdown_again_fraction=again causes"
    )
    place: Place
    kind: ComponentKind
    family: Word
    case: Word
    basis: Basis
    state: SuspectState
    slowdown: float
    detectable: float
    value: float = math.nan
    expected: float = math.nan
    unit: Word = ""
    better: Better = "more"
    again: float = math.nan
    causes: tuple[SlowCause, ...] = ()

    @property
    def subject(self) -> str:
        """The id of the case, or `all cases of memory together`."""
        return self.case or f"all cases of {self.family} together"


@dataclass(frozen=True, slots=True)
class SuspectCase:
    """One case of a suspect with the median of the comparable components, both in SI units.

    `share` is the suspect's rate as a fraction of the median's rate."""

    RECORD: ClassVar[str] = "*place case family unit value median share_of_median_fraction=share"
    place: Place
    case: Word
    family: Word
    unit: Word
    value: float
    median: float
    share: float


@dataclass(frozen=True, slots=True)
class Suspect:
    """A component that is to blame: a GPU, a node or a rack (most of its GPUs are slow), a host, or a link.

    `uuids` are the UUIDs of its devices. `findings` start with the slowest. `cases` are all cases of the suspect,
    whether it is slow there or not, the lowest share first."""

    RECORD: ClassVar[str] = "unit *place uuids findings cases state slowdown_fraction=slowdown causes"
    unit: ComponentKind
    place: Place
    uuids: tuple[str, ...]
    findings: tuple[FleetFinding, ...]
    cases: tuple[SuspectCase, ...] = ()

    @property
    def name(self) -> str:
        names = {"node": self.place.node, "rack": f"rack {self.place.node}"}
        return names.get(self.unit, self.place.text)

    @property
    def parts(self) -> tuple[Place, ...]:
        """The places of the components: of the GPUs of a node, none for a rack, and else its own place."""
        if self.unit == "rack":
            return ()
        if self.unit == "node":
            return tuple(Place(self.place.node, (device,)) for device in self.place.devices)
        return (self.place,)

    @property
    def state(self) -> SuspectState:
        return min((finding.state for finding in self.findings), key=_WORST_FIRST.index)

    @property
    def causes(self) -> tuple[SlowCause, ...]:
        """The causes of all findings, each once; empty if nothing explains them."""
        return tuple(dict.fromkeys(cause for finding in self.findings for cause in finding.causes))

    @property
    def slowdown(self) -> float:
        return max(finding.slowdown for finding in self.findings)


@dataclass(frozen=True, slots=True)
class NodeMedian:
    """The median of one case over the components of a node in SI units; in a fleet of one node, of one component."""

    RECORD: ClassVar[str] = "*place median"
    place: Place
    median: float


@dataclass(frozen=True, slots=True)
class FleetCase:
    """One case of a group: its median in SI units and the relative standard deviation between the components.

    `detectable` is the smallest slowdown that the rule can see in the case, as a fraction; NaN with too few components.
    `nodes` has the medians of each node in a fleet of two to seven, and is empty in others."""

    RECORD: ClassVar[str] = (
        "case family unit components median spread_fraction=spread smallest_detectable_fraction=detectable better nodes"
    )
    case: Word
    family: Word
    unit: Word
    components: int
    median: float
    spread: float
    detectable: float
    nodes: tuple[NodeMedian, ...] = ()
    better: Better = "more"

    @property
    def ratio(self) -> float:
        """The rate of the slowest node as a fraction of the rate of the fastest; NaN without medians of nodes."""
        medians = [node.median for node in self.nodes]
        return min(medians) / max(medians) if medians else math.nan


@dataclass(frozen=True, slots=True)
class TwoPopulations:
    """Cases in which the components of a group are two populations; the slower one, of `slower`, is slower by `gap`.

    `faster` counts the others. `differences` describe the details in which the two differ, if any are known."""

    RECORD: ClassVar[str] = "family cases slower faster_components=faster gap_fraction=gap differences"
    family: Word
    cases: tuple[Word, ...]
    slower: tuple[Place, ...]
    faster: int
    gap: float
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """Comparable components: they have one kind and one fingerprint, which `text` spells out.

    `differences` say how their settings differ from the usual ones of their model, if they do. `shares` then
    has by family the median of their rates as a fraction of the median of the components with the usual settings."""

    RECORD: ClassVar[str] = (
        "kind fingerprint=text components cases populations differences share_of_most_fraction=shares_by_family"
    )
    kind: ComponentKind
    text: str
    components: int
    cases: tuple[FleetCase, ...]
    populations: tuple[TwoPopulations, ...] = ()
    differences: tuple[str, ...] = ()
    shares: tuple[tuple[Word, float], ...] = ()

    @property
    def shares_by_family(self) -> dict[str, float]:
        """The shares by family."""
        return dict(self.shares)


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a component: for each family of cases its mean rate as a share of the group's median (`shares`).

    Temperature, power and clock are NaN if they are unknown. `sick` and `warnings` are the remarks about its health."""

    RECORD: ClassVar[str] = (
        "*place kind group share_of_median_fraction=shares_by_family temperature_c power_w clock_hz state sick warnings"
    )
    place: Place
    kind: ComponentKind
    group: int  # the index of its group
    shares: tuple[tuple[Word, float], ...]
    temperature_c: float = math.nan
    power_w: float = math.nan
    clock_hz: float = math.nan
    state: StandingState = "ok"
    sick: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def shares_by_family(self) -> dict[str, float]:
        """The shares by family."""
        return dict(self.shares)


@dataclass(frozen=True, slots=True)
class FailedCases:
    """Cases that have no valid result on one component but on others: their number, and the first of them."""

    RECORD: ClassVar[str] = "*place status cases=count first_case=case reason"
    place: Place
    status: Literal["failed", "invalid"]
    count: int
    case: Word
    reason: str


@dataclass(frozen=True, slots=True)
class FleetJudgement:
    """The judgement of a fleet: its record, groups of comparable components, suspects (the worst first), and notes.

    `standings` has every component. `failures` has the failed and the invalid cases of each component. `fast` has the
    implausibly fast ones, whose slowdown is negative, the fastest first."""

    fleet: Fleet
    groups: tuple[FleetGroup, ...]
    suspects: tuple[Suspect, ...]
    standings: tuple[Standing, ...]
    bases: tuple[Basis, ...]  # the figures that components were compared with: of others, of a baseline, of a floor
    notes: tuple[str, ...] = ()
    failures: tuple[FailedCases, ...] = ()
    fast: tuple[FleetFinding, ...] = ()

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(family for standing in self.standings for family, _ in standing.shares))

    @property
    def missing_nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.fleet.nodes if node.status != "answered")

    @property
    def sick(self) -> tuple[Standing, ...]:
        """The components whose health readings forbid their use."""
        return tuple(standing for standing in self.standings if standing.sick)

    @property
    def is_judged(self) -> bool:
        """Whether any component was compared, with others, a baseline or a floor."""
        return bool(self.bases)

    def of(self, state: SuspectState) -> tuple[Suspect, ...]:
        return tuple(suspect for suspect in self.suspects if suspect.state == state)


def fleet_status(judgement: FleetJudgement, strict: bool = False) -> int:
    """Return the exit status of a judgement: the first of 6, 3, 1, 4 and 0 that applies.

    It is 6 if a device is sick, 3 if a case failed on one component and not on the others, 1 if a slow component is
    confirmed, 4 if the fleet cannot be judged, and else 0."""
    if judgement.sick:
        return 6
    if any(failure.status == "failed" for failure in judgement.failures):
        return 3
    if judgement.of("confirmed"):
        return 1
    is_odd = judgement.fast or any(group.differences for group in judgement.groups)
    open_questions = judgement.missing_nodes or judgement.of("suspect") or judgement.failures or is_odd
    return 4 if not judgement.is_judged or (strict and open_questions) else 0


def worst_first(suspects: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """Return the suspects by state, the confirmed first, and then by slowdown, the slowest first."""
    return tuple(
        sorted(suspects, key=lambda suspect: (_WORST_FIRST.index(suspect.state), -suspect.slowdown, suspect.place.text))
    )
