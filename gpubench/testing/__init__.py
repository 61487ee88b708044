"""Provide the pytest plugin: its fixture `gpubench` times a callable as the suites do, stores and judges the result.

docs/your-own-program.md is its page. Every pytest session in an environment with gpubench loads this file, so it
imports nothing but pytest; `-p no:gpubench` disables it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpubench.testing.fixture import Gpubench, Timed
    from gpubench.testing.session import MeasuringSession

__all__ = ["Gpubench", "Timed"]

_NAME = "gpubench"
_LINES = pytest.StashKey[list[str]]()


def __getattr__(name: str) -> object:
    """Return the class `Gpubench` or `Timed` for annotations, imported only when it is needed.

    Raises AttributeError for other names."""
    if name in __all__:
        from gpubench.testing import fixture

        return getattr(fixture, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--gpubench-…` to pytest; without them, the measurements are shown and nothing is written."""
    group = parser.getgroup(_NAME, "timing by the fixture gpubench")
    add = group.addoption
    add("--gpubench-device", metavar="ID", help="device to measure on: cuda:0, rocm:0, host (the first GPU, else host)")
    add(
        "--gpubench-tier",
        default="quick",
        choices=("smoke", "quick", "full"),
        help="how long each call is sampled (quick)",
    )
    add("--gpubench-out", metavar="FILE", help="the run file to write: for reports, baselines, the history")
    add(
        "--gpubench-replicates",
        type=int,
        default=1,
        metavar="N",
        help="measure in N processes in all; a test fails as slower only with 5 or more (1)",
    )
    add(
        "--gpubench-baseline",
        action="append",
        default=[],
        metavar="WORD",
        help="what to compare with, as in `gpubench gate`: a run file, a folder, a saved name, last:N; "
        "a test that is slower fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker that measuring tests get automatically: `-m "not gpubench"` leaves them out."""
    config.addinivalue_line("markers", f"{_NAME}: times something by the fixture gpubench (set by the plugin)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that measure, so that they can be selected."""
    for item in items:
        if _is_measuring(item):
            item.add_marker(_NAME)


def _is_measuring(item: pytest.Item) -> bool:
    return _NAME in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def _gpubench_session(request: pytest.FixtureRequest) -> Iterator[MeasuringSession]:
    """Yield what the measuring tests of this session share, and finish it at the end."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("gpubench measures one thing at a time: run these tests with -n 0")
    from gpubench.base.errors import GpubenchError
    from gpubench.base.files import path_problem
    from gpubench.testing.fixture import case_of
    from gpubench.testing.session import MeasuringSession, Options, Progress

    option = request.config.option
    options = Options(
        device=option.gpubench_device or "",
        tier=option.gpubench_tier,
        out=Path(option.gpubench_out).absolute() if option.gpubench_out else None,
        replicates=option.gpubench_replicates,
        baselines=tuple(option.gpubench_baseline),
        arguments=_arguments(request.config),
    )
    items = [item for item in request.session.items if _is_measuring(item)]
    nodes, cases = [item.nodeid for item in items], list(map(case_of, items))
    try:
        session = MeasuringSession(options, request.config.rootpath, nodes, cases, Progress(request.config))
    except GpubenchError as error:
        raise pytest.fail.Exception(f"gpubench: {error}", pytrace=False) from None
    except OSError as error:
        if problem := path_problem(error):
            raise pytest.fail.Exception(f"gpubench: {problem}", pytrace=False) from None
        raise
    yield session
    request.config.stash[_LINES] = session.end()


def _arguments(config: pytest.Config) -> tuple[str, ...]:
    arguments = [f"--rootdir={config.rootpath}", f"--import-mode={config.option.importmode}"]
    arguments += ["-c", str(config.inipath)] if config.inipath else []
    return (*arguments, "-o", "addopts=", "-p", "no:cacheprovider", "-q")


@pytest.fixture
def gpubench(request: pytest.FixtureRequest, _gpubench_session: MeasuringSession) -> Gpubench:
    """Times a callable on the session's device: `gpubench(f, *args)`, with its work and its check."""
    from gpubench.testing.fixture import Gpubench

    return Gpubench(_gpubench_session, request.node)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a table of everything that was timed, or nothing if no test measured."""
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("gpubench")
        for line in lines:
            terminalreporter.write_line(line)
