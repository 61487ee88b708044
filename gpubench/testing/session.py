"""Run a pytest session that measures: one device, one run file, replicates in other processes, and a baseline."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpubench import plugins
from gpubench.analysis.figure import Figure
from gpubench.analysis.summary import Summary
from gpubench.authoring.task import Task
from gpubench.base import units
from gpubench.base.errors import Untrustworthy, UsageError, WrongAnswer
from gpubench.judging.decidable import processes_needed
from gpubench.judging.finding_text import HEADS, MISSING, UNDECIDED, finding_cells, first
from gpubench.judging.judge import DECIDED, Finding
from gpubench.measuring import inventory, plan, stopping, worker
from gpubench.measuring.engine import Engine
from gpubench.measuring.recording import Recording, new_manifest
from gpubench.model import Case, Result, Run, Settings, SuiteInfo, Tier
from gpubench.model.store import read_run
from gpubench.plugins.backend import OpenDevice
from gpubench.testing.verdicts import Baseline, BaselineVerdict
from gpubench.tools import history
from gpubench.tools.history.recording import record_measured_run

_PLAIN = ("median", "95 % interval", "case")
_JUDGED = (*HEADS[2:6], HEADS[0], HEADS[1])  # baseline, candidate, change, interval, verdict, case


@dataclass(slots=True)
class TimedRow:
    """One timed case: its result, its figure over all processes, and its finding if the baseline has the case."""

    result: Result
    figure: Figure | None
    verdict: str = ""
    reason: str = ""
    finding: Finding | None = None

    @property
    def median(self) -> str:
        """The median over all processes, or the status of the case if it has none."""
        return self.figure.text if self.figure else self.result.status

    def cells(self, is_judged: bool) -> tuple[str, ...]:
        """Return the cells of the case; with `is_judged`, the comparison with the baseline (`_JUDGED`)."""
        labels = f" ({', '.join(self.result.labels)})" if self.result.labels else ""
        case = f"{self.result.case.id}{labels}"
        if not is_judged:
            return (self.median, _interval(self.figure) if self.figure else MISSING, case)
        if self.finding is None:
            return (MISSING, self.median, MISSING, MISSING, self.verdict or MISSING, case)
        cells = finding_cells(self.finding)
        return (cells.before, cells.after, cells.change, cells.interval, cells.verdict, case)


def _interval(figure: Figure) -> str:
    return units.interval(figure.interval.low, figure.interval.high, figure.unit, figure.interval.centre)


def table(rows: Sequence[TimedRow], is_judged: bool) -> list[str]:
    """Return the lines of the table, the reasons of cases without a verdict or a figure, and the next step."""
    heads = _JUDGED if is_judged else _PLAIN
    cells = [heads, *(row.cells(is_judged) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in cells]
    lines += [f"{row.result.case.id}: {row.result.status}: {row.result.reason}" for row in rows if not row.figure]
    return [*lines, *_reason_lines(rows), *_next_step(rows)]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    figures = len(cells) - (2 if len(cells) == len(_JUDGED) else 1)
    return [
        text.rjust(width) if place < figures else text.ljust(width)
        for place, (text, width) in enumerate(zip(cells, widths, strict=True))
    ]


def _reason_lines(rows: Sequence[TimedRow]) -> list[str]:
    cases_by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.finding and row.finding.verdict in UNDECIDED and row.reason:
            cases_by_reason.setdefault(row.reason, []).append(row.result.case.id)
    return [f"inconclusive: {first(ids)}: {reason}" for reason, ids in cases_by_reason.items()]


def _next_step(rows: Sequence[TimedRow]) -> list[str]:
    """Return one line with the number of processes that decides the undecided cases; empty if no number is known."""
    undecided = [row.finding for row in rows if row.finding and row.finding.verdict in UNDECIDED]
    needed = [count for finding in undecided if (count := processes_needed(finding))]
    if not needed:
        return []
    cases = f"{len(needed)} of {len(undecided)} inconclusive" if len(undecided) > 1 else "the inconclusive case"
    step = f"measure the baseline and the candidate with --gpubench-replicates {max(needed)}"
    return [f"next: {step}, which decides {cases} with a probability of 80 %"]


_RAN = (0, 1, 5)  # pytest's exit statuses of a complete session: all passed, some failed, no tests
_TAIL = 4  # last lines of an incomplete pytest session that are quoted, because they give the reason


@dataclass(frozen=True, slots=True)
class ReplicateStarter:
    """Starts replicates of a session with the same options."""

    arguments: tuple[str, ...]
    tier: str
    device: str

    def measure(self, nodes: Sequence[str]) -> Run:
        """Run these tests in a new pytest process, not in the history, and return its run."""
        with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
            out = Path(folder) / "run.jsonl"
            options = ["--gpubench-out", str(out), "--gpubench-tier", self.tier, "--gpubench-device", self.device]
            completed = subprocess.run(
                [sys.executable, "-m", "pytest", *nodes, *self.arguments, *options],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, history.VARIABLE: "off"},
                check=False,
            )
            if completed.returncode not in _RAN or not out.exists():
                lines = [line for line in (completed.stdout + completed.stderr).splitlines() if line.strip()]
                last_lines = " | ".join(lines[-_TAIL:])
                raise UsageError(f"a replicate's pytest ended with status {completed.returncode}: {last_lines}")
            return read_run(out)


class Progress:
    """Prints the progress while no test ends: one changing line on a terminal, elsewhere a single line."""

    def __init__(self, config: pytest.Config | None = None) -> None:
        is_quiet = config is None or config.option.verbose < 0
        self._reporter = None if config is None or is_quiet else config.pluginmanager.getplugin("terminalreporter")
        self._capture = config.pluginmanager.getplugin("capturemanager") if config else None

    def say(self, text: str, is_last: bool = True) -> None:
        """Print a line `gpubench: TEXT`; on a terminal, a line that is not the last is replaced by the next one."""
        if self._reporter is None:
            return
        with self._capture.global_and_fixture_disabled() if self._capture else nullcontext():
            _write(self._reporter, f"gpubench: {text}", is_last)

    def count_processes(self, text: str, count: int) -> Iterator[int]:
        """Yield the numbers from 0 to `count` − 1, one per process, and print `text` with the time left before each."""
        start = time.monotonic()
        is_terminal = self._reporter is not None and self._reporter.isatty
        for done in range(count):
            if is_terminal:
                left = f", about {(time.monotonic() - start) / done * (count - done):.0f} s left" if done else ""
                self.say(f"{text}: process {done + 1} of {count}{left}", is_last=False)
            elif not done:
                self.say(f"{text}: {units.count(count, 'process')}")
            yield done
        if is_terminal and count:
            self.say(f"{text}: {count} done in {time.monotonic() - start:.0f} s")


def _write(reporter: Any, line: str, is_last: bool) -> None:
    """Write a line past pytest's output; on a terminal, a line that is not the last is replaced by the next."""
    reporter.ensure_newline()
    if is_last and not reporter.isatty:
        reporter.write_line(line)
    else:
        reporter.rewrite(line, erase=True)
        if is_last:
            reporter.write_line("")
        reporter.flush()


_STRAY_S = 50e-6  # an idle device answers within a few microseconds
_EMPTY_S = 10e-6  # _MANY empty kernels take some hundred µs, two events without work between them one or two
_MANY = 64
_HOW = "docs/your-own-program.md shows how"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; an empty `device` means the first GPU, or the host without one."""

    device: str
    tier: Tier
    out: Path | None
    replicates: int
    baselines: tuple[str, ...]
    arguments: tuple[str, ...]


def suite_of(node: str) -> str:
    """Return the suite of a test's cases, which is its file: `tests/test_gather.py::test_it` is `tests.test_gather`."""
    return re.sub(r"[^\w.+-]", "_", node.partition("::")[0].removesuffix(".py").replace("/", "."))


class MeasuringSession:
    """The state that the measuring tests of a session share; creating it measures the replicates."""

    def __init__(
        self,
        options: Options,
        root: Path,
        nodes: Sequence[str],
        cases: Sequence[Case] = (),
        progress: Progress | None = None,
    ) -> None:
        if options.replicates < 1:
            raise UsageError(f"--gpubench-replicates {options.replicates}: at least 1 is needed")
        if options.out and options.out.exists():
            raise UsageError(f"--gpubench-out {options.out} exists; choose another name")
        self._root = root
        self._replicates = options.replicates
        facts = inventory.facts()
        (name, *_) = plan.device_ids(facts, [options.device] if options.device else [], with_host=False)
        device = facts.device(name)
        self._progress = progress or Progress()
        self._rows: dict[str, TimedRow] = {}
        self._baseline = self._open_baseline(options, cases)
        self._replicate_starter = ReplicateStarter(options.arguments, options.tier, name)
        numbers = self._progress.count_processes("replicates, each in a pytest of its own", options.replicates - 1)
        self._others = [self._replicate_starter.measure(self._node_paths(nodes)) for _ in numbers]
        self.device: OpenDevice = plugins.load("backends", device.backend).open(device)
        self.device.leave()
        self._watches = worker.open_watches(device)
        settings = Settings(tuple(dict.fromkeys(map(suite_of, nodes))), (name,), options.tier)
        suites = [SuiteInfo(name, "tests that measure") for name in settings.suites]
        self._manifest = new_manifest(facts, settings, suites, sys.argv)
        self._out = options.out
        sampled = [listed for listed in facts.devices if listed.id in (name, "host")]
        self._recording = Recording.begin(options.out, self._manifest, sampled) if options.out else None

    def _open_baseline(self, options: Options, cases: Sequence[Case]) -> Baseline | None:
        """Return the baseline that the options name, or None; print how many of the cases have no figure in it."""
        if not options.baselines:
            return None
        baseline = Baseline(options.baselines, (options.out,) if options.out else ())
        baseline.refuse_missing()
        if missing := [case.id for case in baseline.cases_without_figure(cases)]:
            lacking = f"{len(missing)} of {units.count(len(cases), 'test')}"
            self._progress.say(f"no baseline for {lacking}, which cannot fail as slower: {first(missing)}")
        return baseline

    def _node_paths(self, nodes: Iterable[str]) -> list[str]:
        return [f"{self._root}/{node}" for node in nodes]

    @property
    def has_baseline(self) -> bool:
        """Whether results are judged."""
        return self._baseline is not None

    # ---- measuring

    def measure(self, task: Task, case: Case) -> Result:
        """Time a task as a case, write all its results, and return this process's; a failed check is raised again."""
        start = time.monotonic()
        plain = Result(case, (self.device.device.id,), "failed", notes=(("process", "pytest"),))
        self.device.enter()
        try:
            result = self._time(task, plain)
        except (AssertionError, WrongAnswer) as finding:
            reason = str(finding).partition("\n")[0]
            self._store([replace(plain, cause="wrong-answer", reason=reason, elapsed_s=time.monotonic() - start)])
            raise
        finally:
            self.device.leave()
            self.device.release()
        self._store(self._with_replicates(replace(result, elapsed_s=time.monotonic() - start)))
        return result

    def call_once(self, call: Callable[[], object]) -> object:
        """Return what `call` returns when it is called with the session's device as the current device."""
        self.device.enter()
        try:
            return call()
        finally:
            self.device.leave()

    def _time(self, task: Task, plain: Result) -> Result:
        """Return `plain` completed with series, labels and window; it is invalid if the samples cannot be trusted."""
        engine = Engine(self.device, stopping.POLICIES[self._manifest.settings.tier], watches=self._watches)
        engine.verify(task)
        self._refuse_strays(task)
        begin = time.monotonic()
        try:
            measured = engine.measure(task)
        except Untrustworthy as finding:
            return replace(plain, status="invalid", cause=finding.cause, reason=str(finding))
        result = replace(
            plain,
            status="ok",
            series=measured.series,
            discarded=measured.discarded,
            labels=measured.labels,
            window=(begin - self._manifest.started_at, time.monotonic() - self._manifest.started_at),
        )
        self._refuse_empty_batch(result)
        return result

    def _refuse_strays(self, task: Task) -> None:
        """Raise UsageError if, after each stage, more than 50 µs of work is left outside the timed stream."""
        for stage in task.stages.values():
            stage.call()
        seconds = self.device.elsewhere()
        if seconds > _STRAY_S:
            left = units.quantity(seconds, "s")
            raise UsageError(
                f"the call left {left} of work on another stream than the one that is timed: "
                f"launch it on gpubench.stream ({_HOW}), or let the call wait for it"
            )

    def _refuse_empty_batch(self, result: Result) -> None:
        """Raise UsageError if 64 or more hot calls took less than 10 µs on a GPU: nothing ran on the timed stream."""
        hot = result.series[0]
        seconds = max(hot.values) * hot.calls
        if self.device.traits.is_gpu and hot.mode == "hot" and hot.calls >= _MANY and seconds < _EMPTY_S:
            took = units.quantity(seconds, "s")
            raise UsageError(
                f"{hot.calls} calls took {took} on the stream that is timed: they launch nothing there; "
                f"launch on gpubench.stream ({_HOW}), or time them by clock='host'"
            )

    def _with_replicates(self, result: Result) -> list[Result]:
        """Return `result`, then the case's results in the other processes, whose windows are of other clocks."""
        others = [
            replicate_result
            for run in self._others
            for replicate_result in run.results
            if replicate_result.key == result.key
        ]
        return [result, *(replace(replicate, replicate=n, window=(0.0, 0.0)) for n, replicate in enumerate(others, 1))]

    def _store(self, results: Sequence[Result]) -> None:
        result = results[0]
        self._rows[result.case.id] = TimedRow(result, self.figure(result) if result.status == "ok" else None)
        if self._recording:
            for stored in results:
                self._recording.result(stored)
            self._recording.write_sampled()

    # ---- judging and showing

    def judge(self, result: Result, node: str) -> BaselineVerdict:
        """Return the verdict on a result of the test `node`, empty without a baseline; a suspect is measured again."""
        if self._baseline is None:
            return BaselineVerdict()

        def measure_again() -> list[Run]:
            numbers = self._progress.count_processes(
                f"{result.case.id} looks slower and is measured again", self._replicates
            )
            return [self._replicate_starter.measure(self._node_paths([node])) for _ in numbers]

        judged = self._baseline.judge(self._run(result), measure_again)
        row = self._rows[result.case.id]
        row.verdict, row.reason, row.finding = judged.verdict, judged.reason, judged.finding
        return judged

    def figure(self, result: Result) -> Figure:
        """Return the figure of an ok result over all its replicates."""
        (spread,) = Summary(self._run(result)).spreads()
        assert spread.figure is not None  # every ok result has a figure
        return spread.figure

    def _run(self, result: Result) -> Run:
        return Run(self._manifest, tuple(self._with_replicates(result)))

    def end(self) -> list[str]:
        """Finish the run file, add it to the history if one is kept, and return the lines of the summary."""
        device, rows = self.device.device, tuple(self._rows.values())
        title = f"{device.id}, {device.name}, tier {self._manifest.settings.tier}"
        lines = [title, *table(rows, self.has_baseline), *self._decided_line(rows)]
        if self._out and self._recording:
            self._recording.stop_sampling()
            self._recording.end()
            run = read_run(self._out)
            lines += [f"run file: {self._out}", *run.messages, *record_measured_run(self._out, run)]
        return lines

    def _decided_line(self, rows: Sequence[TimedRow]) -> list[str]:
        """Return a list with one line, the number of decided cases; an empty list if no row has a finding."""
        findings = [row.finding for row in rows if row.finding]
        if not findings:
            return []
        decided = sum(finding.verdict in DECIDED for finding in findings)
        undecided = len(findings) - decided
        line = f"{decided} of {units.count(len(findings))} decided against the baseline"
        return [f"warning: {line}: the other {undecided} may be slower" if undecided else line]
