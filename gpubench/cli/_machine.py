"""Show a machine in the terminal: its devices, what is missing, their health, and their counters.

Show the progress of a run on standard error: one updated line on a terminal, else one line per suite."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from gpubench.base import units
from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench import model
    from gpubench.measuring import health, plan, progress, sampler

Part = Table | Text | Padding
_INDENT = 4


def machine(
    facts: model.Facts,
    healths: Sequence[health.Health],
    available: Sequence[sampler.DeviceCounter],
    not_sampled: Sequence[model.UnavailablePart],
) -> list[Part]:
    """Return the texts and tables of `gpubench doctor`, beginning with a line that says whether a GPU can be measured.

    `available` has the reason, empty if there is none, of every counter; `not_sampled` are collectors without any."""
    parts: list[Part] = [_print.plain(_verdict(facts, healths), "bold")]
    if facts.absent:
        parts += _heading_parts("unavailable")
        for part in facts.absent:
            how = [_indented(part.how)] if part.how else []
            parts += [_print.plain(f"{part.what}: {part.reason}", "yellow"), *how]
    if through := [f"{name} is {state}" for name, state in facts.host if state.startswith("interposed: ")]:
        parts += _heading_parts("libraries between programs and the driver")
        parts += [_print.plain(state, "yellow") for state in through]
    parts += [*_heading_parts("devices"), *(part for device in facts.devices for part in _device_parts(device))]
    if healths:
        parts += [*_heading_parts("health"), *(part for of_device in healths for part in _health_parts(of_device))]
    parts += [*_heading_parts("counters"), *_counter_parts(available, not_sampled)]
    parts += [*_heading_parts("host"), _pairs_part(units.fact(*pair) for pair in facts.host)]
    parts += [*_heading_parts("versions"), _pairs_part(facts.versions)]
    return parts


def counters(available: Sequence[sampler.DeviceCounter]) -> list[Part]:
    """Return a table of every counter of the devices, with its unit, period, availability and the vendor's command."""
    heads = ("device", "counter", "unit", "kind", "period", "available", "vendor command")
    rows = []
    for entry in available:
        counter, state = entry.counter, f"no: {entry.reason}" if entry.reason else "yes"
        names = (entry.device, counter.name, counter.unit, counter.kind)
        rows.append((*names, f"{counter.period_s:g} s", state, counter.source))
    table = _print.table(heads, rows)
    for column in table.columns[:5]:
        column.no_wrap = True
    return [table]


def _verdict(facts: model.Facts, healths: Sequence[health.Health]) -> str:
    gpus = [device for device in facts.devices if device.backend != "host"]
    if not gpus:
        return "no GPU is usable: `gpubench run` measures the host processor"
    sick = [of_device.device for of_device in healths if of_device.severity == "sick"]
    names = ", ".join(dict.fromkeys(device.name for device in gpus))
    answer = f"ready to measure {units.count(len(gpus), 'GPU')}: {names}"
    return f"{answer}; unhealthy: {', '.join(sick)}" if sick else answer


def _heading_parts(title: str) -> list[Part]:
    return [Text(""), _print.plain(title, "italic")]


def _indented(text: str, style: str = "", depth: int = 1) -> Padding:
    return Padding(_print.plain(text, style), (0, 0, 0, _INDENT * depth), expand=False)


def _device_parts(device: model.Device) -> Iterator[Part]:
    facts = [
        device.name,
        device.arch,
        *device.sizes,
        f"last-level cache {units.brief_size(device.cache_bytes)}" if device.cache_bytes else "",
        f"reaches {', '.join(device.peers)}" if device.peers else "",
    ]
    yield _print.plain(f"{device.id}: {', '.join(fact for fact in facts if fact)}")
    if device.details:
        yield _pairs_part(units.fact(*pair) for pair in device.details)


def _pairs_part(facts: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Padding:
    return _indented(", ".join(f"{name} {text}" for name, text in facts))


def _health_parts(of_device: health.Health) -> Iterator[Part]:
    """Yield the lines on one device's health: its state, bad findings with advice and command, unavailable readings."""
    findings, unavailable = of_device.findings, of_device.of("unavailable")
    if not findings:
        yield _print.plain(f"{of_device.device}: unavailable: {of_device.unavailable}", "yellow")
        return
    read = len(findings) - len(unavailable)
    state = {"ok": "healthy", "warning": "usable, with warnings"}.get(of_device.severity, of_device.severity)
    yield _print.plain(f"{of_device.device}: {state} ({read} of {len(findings)} readings are available)")
    for finding in (*of_device.of("sick"), *of_device.of("warning")):
        style = "bold red" if finding.severity == "sick" else "yellow"
        yield _indented(f"{finding.severity}: {finding.text}", style)
        if finding.advice:
            yield _indented(finding.advice, depth=2)
        if finding.command:
            yield _indented(f"$ {finding.command}", depth=2)
    for finding in unavailable:
        yield _indented(f"unavailable: {finding.text}", "dim")


def _counter_parts(
    entries: Sequence[sampler.DeviceCounter], not_sampled: Sequence[model.UnavailablePart]
) -> Iterator[Part]:
    for device in dict.fromkeys(entry.device for entry in entries):
        of_device = [entry for entry in entries if entry.device == device]
        available = [entry for entry in of_device if not entry.reason]
        yield _print.plain(f"{device}: {len(available)} of {len(of_device)} counters are available")
        for entry in of_device:
            if entry.reason:
                yield _indented(f"{entry.counter.name} is unavailable: {entry.reason}", "dim")
    reasons: dict[str, list[str]] = {}
    for part in not_sampled:
        reasons.setdefault(f"{part.reason}; {part.how}" if part.how else part.reason, []).append(part.what)
    for reason, names in reasons.items():
        yield _print.plain(f"not sampled: {', '.join(names)}: {reason}", "dim")
    yield _print.plain("every counter: gpubench doctor --counters", "dim")


_BAR = 16  # the width of a bar in characters
_BAR_FITS = 60  # columns of a terminal that has room for a bar


@contextmanager
def run_display() -> Iterator[progress.Observer]:
    """Yield an observer of a run's progress: one changing line on a terminal, elsewhere a line per suite or replicate.

    Failed and invalid cases are printed at once."""
    console = _print.err()
    if not console.is_terminal or console.is_dumb_terminal:
        yield _ProgressLines().watch
        return
    # the name of the case is cut at the edge of the terminal
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", markup=False, table_column=rest),
    )
    bar = (BarColumn(_BAR),) if console.width >= _BAR_FITS else ()
    with Progress(*bar, *columns, console=console, transient=True, expand=True) as drawn:
        task = drawn.add_task("", total=None, left="")

        def watch(event: progress.ProgressEvent) -> None:
            """Draw the state after `event`, and print a line if the result is failed or invalid."""
            done, case = event.index + (event.result is not None), _print.plain(event.job.case.id).plain
            left = _left_text(event.left_s)
            drawn.update(task, total=len(event.jobs), completed=done, description=case, left=left)
            if problem := _problem_text(event.result):
                drawn.console.print(_print.plain(problem, "red"))

        yield watch


class _ProgressLines:
    """Prints a line when all cases of a suite or replicate were measured, and each problem at once."""

    def __init__(self) -> None:
        self._groups: dict[plan.Job, str] = {}
        self._left: Counter[str] = Counter()
        self._ended: dict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: dict[str, float] = defaultdict(float)

    def watch(self, event: progress.ProgressEvent) -> None:
        """Print the problem of the event's result, if it has one, and the line of the group whose last case it is."""
        if event.result is None:
            if event.index == 0:
                self._groups = dict(zip(event.jobs, _group_names(event.jobs), strict=True))
                self._left = Counter(self._groups.values())
                self._ended.clear()
                self._seconds.clear()
            return
        if problem := _problem_text(event.result):
            _print.say(problem)
        group = self._groups[event.job]
        self._left[group] -= 1
        self._ended[group][event.result.status] += 1
        self._seconds[group] += event.result.elapsed_s
        if not self._left[group]:
            ended = ", ".join(f"{count} {status}" for status, count in self._ended[group].items())
            left = f"; {_left_text(event.left_s)}" if self._left.total() else ""
            _print.say(f"{group}: {ended} in {units.duration(self._seconds[group])}{left}")


def _group_names(jobs: Sequence[plan.Job]) -> Iterator[str]:
    replicates = {job.replicate for job in jobs}
    devices = {job.devices[0].id for job in jobs}
    for job in jobs:
        if len(replicates) > 1:
            yield f"replicate {job.replicate + 1}"
        else:
            yield f"{job.case.suite} on {job.devices[0].id}" if len(devices) > 1 else job.case.suite


def _left_text(seconds: float) -> str:
    """Return the estimated remaining time as `about 40 s left`."""
    return f"about {f'{max(1, round(seconds))} s' if seconds < 60 else units.duration(seconds)} left"


def _problem_text(result: model.Result | None) -> str:
    if result is None or result.status not in ("failed", "invalid"):
        return ""
    return f"{result.status}: {result.case.id}: {result.reason}"
