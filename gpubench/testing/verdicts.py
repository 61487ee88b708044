"""Compare a test's result with a baseline by the regression gate, which measures suspects again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpubench import plugins
from gpubench.analysis.fingerprint import fingerprint
from gpubench.base.errors import FileError
from gpubench.judging import finding_text, policy, rounds
from gpubench.judging.evidence import Evidence, Gathering, Reading
from gpubench.judging.judge import Finding, exit_status
from gpubench.model import Case, Run
from gpubench.tools import history
from gpubench.tools.gating import baselines, saved
from gpubench.tools.gating.gate import GateRequest
from gpubench.tools.gating.readings import read_all


@dataclass(frozen=True, slots=True)
class BaselineVerdict:
    """A verdict with its reason, and whether it fails the test; all empty without a baseline."""

    verdict: str = ""
    reason: str = ""
    fails: bool = False
    finding: Finding | None = None

    @property
    def failure(self) -> str:
        """The message of the failed test: verdict, change, threshold and case in the first line, then the figures."""
        finding = self.finding
        if finding is None or finding.effect is None:
            return f"{self.verdict}: {finding.case.id if finding else 'case'}: {self.reason}"
        cells = finding_text.finding_cells(finding)
        return (
            f"{cells.verdict}: {cells.change}, threshold {cells.threshold}: {finding.case.id}\n"
            f"baseline {cells.before}, candidate {cells.after}, 95 % interval {cells.interval}, "
            f"{finding.before.processes} and {finding.after.processes} processes\n{cells.explanation}"
        ).rstrip()


@dataclass(slots=True)
class Baseline:
    """The baseline that --gpubench-baseline names; each run file is read once."""

    names: tuple[str, ...]
    own_files: tuple[Path, ...]  # the files of this session, which cannot be its own baseline
    _asked: GateRequest = field(default_factory=lambda: GateRequest(plugins.load("gates", "regression"), policy.load()))
    _read: dict[tuple[Path, ...], list[Reading]] = field(default_factory=dict)

    def judge(self, run: Run, measure_again: Callable[[], Sequence[Run]]) -> BaselineVerdict:
        """Return the gate's verdict on a run of one case; for a suspect, `measure_again` returns further runs."""
        case = run.results[0].case
        before = self._evidence(run, case)
        if not before.sides:
            return BaselineVerdict("new", "the baseline does not have it")

        def more(sides: rounds.Sides, suspects: tuple[Finding, ...]) -> rounds.Sides:
            """Return the sides with one more measurement of the case as candidate; `suspects` is that case alone."""
            del suspects  # the only case is measured again
            return rounds.Sides(
                sides.before,
                sides.after.with_repeats([_restrict_to_case(Reading.of(repeat), case) for repeat in measure_again()]),
            )

        judgement = self._asked.settle(rounds.Sides(before, Evidence([[Reading.of(run)]])), more)
        (finding, *_) = judgement.findings
        reason = finding_text.explanation(finding).replace(" --replicates", " --gpubench-replicates")
        fails = exit_status(judgement, self._asked.policy.strict, allow_undecided=True) != 0
        return BaselineVerdict(str(finding.verdict), reason, fails, finding)

    def refuse_missing(self) -> None:
        """Check that the baseline exists, without reading it. Raises FileError if it does not."""
        if saved.needs_cases(self.names) and not (place := history.default_place()).exists():
            raise FileError(f"no baseline: there is no history at {place}; `gpubench history import FOLDER` makes one")
        saved.check(self.names)

    def cases_without_figure(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases without a figure in the baseline; none if `last:N` depends on the measured case."""
        if saved.needs_cases(self.names):
            return []
        timed = {(case.suite, case.name, case.params) for case in self._cases(tuple(self._files([])))}
        named = {
            (suite, name.rpartition(".")[0], params) for suite, name, params in timed
        }  # cases that a test timed with name=…
        return [case for case in cases if (case.suite, case.name, case.params) not in timed | named]

    def _cases(self, files: tuple[Path, ...]) -> Iterator[Case]:
        return (
            replicates[0][0] for reading in self._readings(files) for replicates in reading.gathered.results.values()
        )

    def _files(self, wanted: Sequence[baselines.CaseInHistory]) -> list[Path]:
        return baselines.find_files(self.names, wanted, self.own_files)

    def _readings(self, files: tuple[Path, ...]) -> list[Reading]:
        if files not in self._read:
            self._read[files] = read_all(files)
        return self._read[files]

    def _evidence(self, run: Run, case: Case) -> Evidence:
        """Return the evidence of `case` in the baseline's run files, one session each; `run` is the candidate's."""
        kind = fingerprint(run.manifest.facts, run.results[0].devices).id
        wanted = baselines.CaseInHistory(case.id, case.version, run.manifest.settings.tier, kind)
        return Evidence(
            [[_restrict_to_case(reading, case)] for reading in self._readings(tuple(self._files([wanted])))]
        )


def _restrict_to_case(reading: Reading, case: Case) -> Reading:
    selected = {key: replicates for key, replicates in reading.gathered.results.items() if key[0] == case.id}
    return replace(reading, gathered=Gathering(selected, reading.gathered.clocks))
