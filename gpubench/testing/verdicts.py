"""A test's result held against a baseline by the core's own gate; suspects are measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpubench import plugins
from gpubench.analysis.fingerprint import fingerprint
from gpubench.judging import policy
from gpubench.judging.evidence import Evidence, Gathering, Reading
from gpubench.judging.judge import Finding, exit_status
from gpubench.judging.rounds import Sides
from gpubench.judging.words import sentence
from gpubench.model import Case, Run
from gpubench.tools.gating import baselines
from gpubench.tools.gating.gate import Asked
from gpubench.tools.gating.readings import read_all


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with its reason in words, and whether the test fails by it; all empty without a baseline.

    `is_decided` is None where the baseline does not have the case.
    """

    verdict: str = ""
    reason: str = ""
    fails: bool = False
    is_decided: bool | None = None

    @property
    def words(self) -> str:
        """`slower: +4.9 % (…), threshold 2.0 %`."""
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


@dataclass(slots=True)
class Baseline:
    """What the words of --gpubench-baseline name; each run file is read once."""

    words: tuple[str, ...]
    own: tuple[Path, ...]  # the files of this session: no baseline of itself
    _asked: Asked = field(default_factory=lambda: Asked(plugins.load("gates", "regression"), policy.load()))
    _read: dict[tuple[Path, ...], list[Reading]] = field(default_factory=dict)

    def judge(self, run: Run, again: Callable[[], Sequence[Run]]) -> Judged:
        """The verdict on a run of one case; `again` measures it once more in as many processes."""
        case = run.results[0].case
        before = self._evidence(run, case)
        if not before.sides:
            return Judged("new", "the baseline does not have it")

        def more(sides: Sides, suspects: tuple[Finding, ...]) -> Sides:
            del suspects  # there is but the one case
            return Sides(sides.before, sides.after.and_again([_only(Reading.of(each), case) for each in again()]))

        judgement = self._asked.settle(Sides(before, Evidence([[Reading.of(run)]])), more)
        (finding, *_) = judgement.findings
        reason = sentence(finding).replace(" --replicates", " --gpubench-replicates")
        fails = exit_status(judgement, self._asked.policy.strict) != 0
        return Judged(str(finding.verdict), reason, fails, judgement.decided > 0)

    def _evidence(self, run: Run, case: Case) -> Evidence:
        """What the baseline's run files have of a case; each is a sitting of its own."""
        kind = fingerprint(run.manifest.facts, run.results[0].devices).id
        wanted = baselines.Wanted(case.id, case.version, run.manifest.settings.tier, kind)
        files = tuple(baselines.find(self.words, [wanted], self.own))
        if files not in self._read:
            self._read[files] = read_all(files)
        return Evidence([[_only(reading, case)] for reading in self._read[files]])


def _only(reading: Reading, case: Case) -> Reading:
    """What a run says of one case."""
    kept = {key: found for key, found in reading.gathered.results.items() if key[0] == case.id}
    return replace(reading, gathered=Gathering(kept, reading.gathered.clocks))
