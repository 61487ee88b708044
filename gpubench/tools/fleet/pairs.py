"""Measure between the nodes of a fleet, pair by pair in rounds, and find the node or the link that is slow.

In each round the nodes form disjoint pairs, and each pair measures the same collectives as a separate group. The record
`pairs.json` lists the pairs of each round; the run files of a round are in a folder with its number."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pydantic

from gpubench.analysis.quantities import headline
from gpubench.base.files import write_whole
from gpubench.judging import links
from gpubench.judging.fleet import FleetFinding, FleetJudgement, worst_first
from gpubench.judging.links import Pair
from gpubench.model.disk import as_file_errors
from gpubench.model.limits import Count, Many, Name, Text
from gpubench.model.schema import Strict
from gpubench.model.store import read_run
from gpubench.tools.fleet.board import NodeOrder, PairPlace
from gpubench.tools.fleet.session import PAIRS, PAIRS_FILE, NodeOutcome, NodeSession

SUITES, FILTERS = ("collectives",), ("collectives/across[*,nodes=2,of=2,*",)
_PORTS = range(20_000, 32_000)  # below the ports that Linux assigns to outgoing connections
_MOST_REMEASURED = 8  # most suspects that are measured again
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PairMeasurement(Strict):
    """One measurement of two nodes: its round (0: measured alone) and the numbers of the nodes."""

    round: Count
    first: Count
    second: Count
    folder: Name
    reason: Text = ""

    @property
    def pair(self) -> Pair:
        return self.first, self.second


@dataclass(frozen=True, slots=True)
class PairsRecord(Strict):
    """The record of a fleet's pairs: the names of the nodes by number, and every measurement of a pair."""

    nodes: Many[Name]
    meetings: Many[PairMeasurement] = ()
    schema: Literal["gpubench.pairs/1"] = "gpubench.pairs/1"


_RECORD = pydantic.TypeAdapter(PairsRecord)


class PairsSession(NodeSession):
    """A measurement of the pairs of a fleet: enter the context and call `measure`."""

    _record = PairsRecord(())
    _unreachable: frozenset[int] = frozenset()

    def measure(self, rounds: int) -> FleetJudgement:
        """Measure all rounds, then the suspects alone, and return the judgement."""
        self._coordinator.gather()
        self._record = PairsRecord(tuple(map(self._coordinator.name, self._coordinator.nodes)))
        self._unreachable = frozenset(self._coordinator.nodes) - set(self._coordinator.ready())
        for number, pairs in enumerate(links.schedule(len(self._record.nodes), rounds), 1):
            self._measure_round(number, pairs, str(number))
        judgement = judge(self._record, self._request.folder)
        return self._measured_again(judgement) if judgement.suspects else judgement

    def _measured_again(self, judgement: FleetJudgement) -> FleetJudgement:
        """Measure the pairs of the suspects and one healthy pair alone, and return the judgement with the results."""
        names, rates = self._record.nodes, rates_of(self._record, self._request.folder)
        findings = [finding for suspect in judgement.suspects for finding in suspect.findings]
        pairs = {finding: links.pair_of(finding, names, rates[finding.case]) for finding in findings}
        suspect_nodes = {node for pair in pairs.values() for node in pair}
        healthy = [pair for pair in sorted(next(iter(rates.values()))) if not suspect_nodes & set(pair)]
        remeasured = list(dict.fromkeys(pairs.values()))[:_MOST_REMEASURED]
        for position, pair in enumerate([*healthy[:1], *remeasured]):
            self._measure_round(0, [pair], f"alone-{position}")
        alone = rates_of(self._record, self._request.folder, is_alone=True)
        slowdowns: dict[FleetFinding, float | None] = {}
        for finding, pair in pairs.items():
            of_case = alone.get(finding.case, {})
            control = next((of_case[control_pair] for control_pair in healthy if control_pair in of_case), None)
            slowdowns[finding] = None if control is None or pair not in of_case else 1 - of_case[pair] / control
        return confirmed(judgement, slowdowns)

    def _measure_round(self, turn: int, pairs: Sequence[Pair], name: str) -> None:
        folder = self._request.folder / PAIRS / name
        with as_file_errors(folder):
            folder.mkdir(parents=True)
        outcomes: dict[int, NodeOutcome] = {}
        places: dict[int, PairPlace] = {}
        for pair in (pair for pair in pairs if not self._unreachable & set(pair)):
            reports = [self._coordinator.nodes[rank].report for rank in pair]
            is_local = len({report.machine for report in reports if report}) == 1
            host = _LOCAL if is_local or reports[0] is None else reports[0].address
            # the first node listens at a random port
            address, secret = f"{host}:{secrets.choice(_PORTS)}", secrets.token_hex(32)
            places |= {rank: PairPlace(number, len(pair), address, secret) for number, rank in enumerate(pair)}

        def pair_order(rank: int, order: NodeOrder) -> NodeOrder:
            return replace(order, devices=order.devices[:1], place=places[rank])

        self._coordinator.turn(places, self._request.order, folder, outcomes.__setitem__, pair_order)
        lost = ("died", "missing", "timed out")
        self._unreachable |= {rank for rank, outcome in outcomes.items() if outcome.status in lost}
        meetings = [PairMeasurement(turn, *pair, name, self._missing_reason(pair, outcomes)) for pair in pairs]
        self._record = replace(self._record, meetings=(*self._record.meetings, *meetings))
        path = self._request.folder / PAIRS_FILE
        with as_file_errors(path):
            write_whole(path, _RECORD.dump_json(self._record, indent=1) + b"\n")

    def _missing_reason(self, pair: Pair, outcomes: Mapping[int, NodeOutcome]) -> str:
        if not outcomes.keys() & set(pair):
            unreachable = [self._coordinator.name(rank) for rank in pair if rank in self._unreachable]
            return f"{' and '.join(unreachable)} did not answer in an earlier round"
        for rank in pair:
            if not outcomes[rank].file or outcomes[rank].status != "answered":
                return f"{self._coordinator.name(rank)} {outcomes[rank].status}: {outcomes[rank].reason}"[:2000]
        return ""


def rates_of(record: PairsRecord, folder: Path, is_alone: bool = False) -> dict[str, dict[Pair, float]]:
    """Return the rate of each pair in B/s by case id: the geometric mean over its measurements and both nodes."""
    logs: dict[str, dict[Pair, list[float]]] = {}
    for meeting in record.meetings:
        if meeting.reason or (meeting.round == 0) != is_alone:
            continue
        for node in meeting.pair:
            path = folder / PAIRS / meeting.folder / f"{record.nodes[node]}.jsonl.gz"
            for result in read_run(path).results:
                series = headline(result)
                if result.status == "ok" and series is not None:
                    rate = series.work.payload / float(np.median(series.values))
                    logs.setdefault(result.case.id, {}).setdefault(meeting.pair, []).append(float(np.log(rate)))
    return {
        case: {pair: float(np.exp(np.mean(values))) for pair, values in logs_by_pair.items()}
        for case, logs_by_pair in logs.items()
    }


def judge(record: PairsRecord, folder: Path) -> FleetJudgement:
    """Return the judgement of all measurements of rounds, whose record is in `folder`."""
    failures = [
        f"{record.nodes[meeting.first]} and {record.nodes[meeting.second]} in round {meeting.round}: {meeting.reason}"
        for meeting in record.meetings
        if meeting.reason
    ]
    return links.judge_pairs(record.nodes, rates_of(record, folder), failures)


def confirmed(judgement: FleetJudgement, slowdowns: Mapping[FleetFinding, float | None]) -> FleetJudgement:
    """Return the judgement with the slowdowns of findings whose pair was measured alone; None leaves a finding open."""

    def again(finding: FleetFinding) -> FleetFinding:
        alone = slowdowns.get(finding)
        if alone is None:
            return finding
        return replace(finding, again=alone, state="confirmed" if alone >= finding.detectable else "transient")

    suspects = [replace(part, findings=tuple(map(again, part.findings))) for part in judgement.suspects]
    return replace(judgement, suspects=worst_first(suspects))
