"""Progress of a run: the time left, one line on a terminal, and a line for each suite without one."""

import dataclasses
import io
import re

import _make as make
import pytest
from rich.console import Console

from gpubench.cli import _machine
from gpubench.measuring.plan import Job, Plan
from gpubench.measuring.progress import Forecast, ProgressEvent
from gpubench.model import Settings

DEVICE = make.device()
LONG = "names_can_be_long_" * 10


def job(suite="bandwidth", number=0, replicate=0, devices=(DEVICE,), **params):
    return Job(make.case("triad", suite, size=number, **params), devices, replicate)


def plan(jobs):
    return Plan(make.facts(DEVICE), Settings(("all",), ("cuda:0",), "quick"), (), tuple(jobs))


def events(jobs, status="ok"):
    """Yield the events of a run of these jobs, each of which takes two seconds."""
    forecast = Forecast(plan(jobs), jobs)
    for index, of in enumerate(jobs):
        yield ProgressEvent(of, index, jobs, forecast.left_s())
        forecast.add(of, 2.0)
        result = make.result(of=of.case, status=status, reason="the answer\nis wrong", elapsed_s=2.0)
        yield ProgressEvent(of, index, jobs, forecast.left_s(), result)


def test_a_forecast_follows_the_plan_at_first_and_then_what_jobs_of_the_suite_took():
    jobs = [job("bandwidth", number) for number in range(100)] + [job("gemm", number) for number in range(10)]
    forecast = Forecast(plan(jobs), jobs)
    planned_s = plan(jobs).seconds_of(jobs[0])
    assert forecast.left_s() == pytest.approx(110 * planned_s)
    for of in jobs[:99]:
        forecast.add(of, planned_s)
    assert forecast.left_s() == pytest.approx(11 * planned_s)
    lacking = Job(dataclasses.replace(make.case("pull", "ipc"), devices=2), (DEVICE,), 0)
    assert Forecast(plan([lacking]), [lacking]).left_s() == 0.0, "with too few devices"


def test_a_slow_suite_lengthens_the_forecast_of_the_suites_that_follow():
    jobs = [job(suite, number) for suite in ("bandwidth", "gemm", "ipc", "latency") for number in range(10)]
    forecast = Forecast(plan(jobs), jobs)
    planned_s = plan(jobs).seconds_of(jobs[0])
    for of in jobs[:20]:
        forecast.add(of, 5 * planned_s)
    assert forecast.left_s() == pytest.approx(20 * planned_s * 5 ** (2 / 3))
    assert 0.5 < forecast.left_s() / (20 * 5 * planned_s) < 1


@pytest.mark.parametrize("width", [30, 40, 80, 140])
def test_on_a_terminal_the_time_left_stands_in_one_line_that_fits(monkeypatch, width):
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=width, _environ={"TERM": "xterm"})
    monkeypatch.setattr(_machine._print, "err", lambda: console)
    with _machine.run_display() as watch:
        for event in events([job(path=LONG), job("gemm", path=LONG)]):
            watch(event)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue()))
    assert max(map(len, lines)) <= width
    assert any(re.search(r"\d/2 about \d+ s left", line) for line in lines)


@pytest.mark.parametrize("term", ["", "dumb"])
def test_without_a_terminal_that_moves_its_cursor_each_suite_has_a_line(monkeypatch, capsys, term):
    drawn = io.StringIO()
    if term:
        console = Console(file=drawn, force_terminal=True, color_system=None, _environ={"TERM": term})
        monkeypatch.setattr(_machine._print, "err", lambda: console)
    with _machine.run_display() as watch:
        for event in events([job(), job(number=1), job("gemm")]):
            watch(event)
    lines = (drawn.getvalue() if term else capsys.readouterr().err).splitlines()
    assert lines == ["bandwidth: 2 ok in 4.00 s; about 1 s left", "gemm: 1 ok in 2.00 s"]


def test_a_failed_case_is_printed_at_once_and_each_device_and_replicate_has_a_line(capsys):
    with _machine.run_display() as watch:
        for event in events([job()], status="failed"):
            watch(event)
    assert capsys.readouterr().err.splitlines() == [
        "failed: bandwidth/triad[size=0]: the answer is wrong",
        "bandwidth: 1 failed in 2.00 s",
    ]
    second_device = make.device("cuda:1")
    with _machine.run_display() as watch:
        for event in events([job(), job(devices=(second_device,))]):
            watch(event)
    assert [line.partition(":")[2].split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["0", "1"]
    jobs = [job(suite, 0, replicate) for replicate in (0, 1) for suite in ("gemm", "ipc", "gemm2")]
    with _machine.run_display() as watch:
        for _ in range(2):  # a gate measures suspects again with the same observer
            for event in events(jobs):
                watch(event)
    suites = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert suites == ["replicate 1", "replicate 2"] * 2
