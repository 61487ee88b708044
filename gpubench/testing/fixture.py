"""Define the fixture `gpubench` as a test receives it: the device, and the call that times."""

import functools
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pytest

from gpubench import stats
from gpubench.analysis.figure import Figure
from gpubench.authoring.task import Observation, Stage, Task, no_values, nothing
from gpubench.base.errors import GpubenchError, Skip, UsageError, WrongAnswer
from gpubench.measuring.ceilings import IMPOSSIBLE
from gpubench.model import Case, Params, Quantity, Result, Work
from gpubench.plugins.backend import Kernel, Mode, OpenDevice, Traits
from gpubench.testing.session import MeasuringSession, suite_of

_MOST_LETTERS = 40  # the longest text of a parameter in a case's id


@dataclass(frozen=True, slots=True)
class Timed:
    """The outcome of a timing: the result as in the run file, its figure over all processes, and the verdict.

    `verdict` is empty without a baseline. `value` is the return value of one more call after the timing."""

    result: Result
    figure: Figure
    verdict: str = ""
    value: object = None

    @property
    def seconds(self) -> float:
        """The median seconds of a call."""
        return stats.median(self.result.series[0].values)

    def __str__(self) -> str:
        return self.figure.text


class Gpubench:
    """The fixture. It times a callable on the session's device, checks it before and after, and stores the results.

    The parameters of the test become parameters of the case: `test_gather[1024]` in `test_kernels.py` is
    `test_kernels/test_gather[n=1024]`."""

    def __init__(self, session: MeasuringSession, item: pytest.Item) -> None:
        self._session = session
        self._item = item
        self._names: set[str] = set()

    @property
    def device(self) -> OpenDevice:
        """The open device: `device.to_host(array)`, `device.traits`, `device.device` (its facts)."""
        return self._session.device

    @property
    def xp(self) -> Any:
        """The array module: cupy on a GPU, numpy on the host."""
        return self.device.xp

    @property
    def traits(self) -> Traits:
        """The properties and capabilities of the device: `traits.is_gpu`."""
        return self.device.traits

    @property
    def stream(self) -> int:
        """The address of the timed stream, on which libraries other than CuPy must launch; 0 on the host."""
        return self.device.stream

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator, seeded by the test's name: the same data every time."""
        return np.random.default_rng(zlib.crc32(self._item.nodeid.encode()))

    def kernel(self, file: str, name: str, **defines: str | int) -> Kernel:
        """Return the kernel `name`, compiled from the .cu file `file` next to the test with these macros defined.

        The test is skipped if the device runs no such kernels. Raises OSError if the file cannot be read."""
        try:
            return self.device.kernel((self._item.path.parent / file).read_text(encoding="utf-8"), name, defines)
        except Skip as reason:
            pytest.skip(str(reason))

    def __call__(
        self,
        call: Callable[..., object],
        *args: object,
        check: Callable[[], object] = nothing,
        poison: Callable[[], None] = nothing,
        moved: float = 0.0,
        payload: float = 0.0,
        flops: float = 0.0,
        items: float = 0.0,
        item: str = "item",
        modes: tuple[Mode, ...] = ("hot",),
        clock: Literal["device", "host"] = "device",
        waits: bool = False,
        limit: str = "",
        name: str = "",
        version: int = 1,
    ) -> Timed:
        """Time `call(*args)`, warmed up and until the interval of its median is narrow; check it before and after.

        check: asserts that the outputs of the last `call` are right, and may return a mapping of observed values;
        `poison` overwrites the outputs before a checked call. moved, payload (bytes), flops, items: the work of one
        call; the first that is given makes the figure a rate, otherwise it is in seconds. `item` names an item
        (`token`). modes, limit: as in a suite's `Stage`. clock: `device`, or `host` if the time of the call on the host
        is the question. waits: the call waits for the device itself. name: distinguishes several timings in one test.
        version: increase it when the method changes.

        Without a check the table calls the case unchecked. Fails the test if a check fails, if the rate is more than
        the device can do, or if the call is slower than the baseline or cannot be compared with it. Skips
        the test if most samples had to be discarded, or if the device lacks a capability. Returns the timing; its
        `value` is the return value of one more call."""
        __tracebackhide__ = True  # pytest shows a failing check from the check on
        work = Work(moved, payload, flops, items)
        timed = functools.partial(call, *args) if args else call
        stage = Stage(timed, work, _quantity(work), limit, modes, clock, waits, item=item)
        checked = no_values if check is nothing else lambda: _observations(check())  # without a check: `unchecked`
        task = Task.of(stage, check=checked, poison=poison)
        try:
            return self._time_and_judge(task, self._new_case(name, version), timed)
        except (AssertionError, WrongAnswer) as error:
            raise error.with_traceback(_traceback_outside_gpubench(error)) from None
        except Skip as reason:
            raise pytest.skip.Exception(str(reason)) from None
        except GpubenchError as error:
            raise pytest.fail.Exception(f"gpubench: {error}", pytrace=False) from None

    def _time_and_judge(self, task: Task, case: Case, call: Callable[[], object]) -> Timed:
        """Time the task, and fail the test if it fails against the baseline or cannot be trusted without one."""
        result = self._session.measure(task, case)
        if result.cause == IMPOSSIBLE:
            pytest.fail(result.reason, pytrace=False)
        if result.status == "invalid" and not self._session.has_baseline:
            pytest.skip(f"the samples cannot be trusted: {result.reason}")
        value = self._session.call_once(call) if result.status == "ok" else None
        judged = self._session.judge(result, self._item.nodeid)
        if judged.fails:
            pytest.fail(judged.failure, pytrace=False)
        return Timed(result, self._session.figure(result), judged.verdict, value)

    def _new_case(self, name: str, version: int) -> Case:
        """Return the case of this timing. Raises UsageError if an earlier timing of this test has the same name."""
        if name in self._names:
            raise UsageError(f"{self._item.name} times several calls: give each its own name=…")
        self._names.add(name)
        return case_of(self._item, name, version)


def case_of(item: pytest.Item, name: str = "", version: int = 1) -> Case:
    """Return the case that a test measures: `test_kernels.py::test_gather[1024]` is `test_kernels/test_gather[n=1024]`.

    `name` distinguishes several timings of one test, and `version` is the version of the method."""
    _, *parts = item.nodeid.split("::")
    parts[-1] = getattr(item, "originalname", None) or parts[-1]
    callspec = getattr(item, "callspec", None)
    whole = ".".join([*parts, *([name] if name else [])])
    return Case(suite_of(item.nodeid), _word(whole), _params(callspec) if callspec else (), version)


def _traceback_outside_gpubench(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from its first frame outside gpubench; None if all frames are inside."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("gpubench."):
        trace = trace.tb_next
    return trace


def _quantity(work: Work) -> Quantity:
    kinds: tuple[Quantity, ...] = ("moved", "payload", "flops", "items")
    return next((kind for kind in kinds if getattr(work, kind)), "value")


def _observations(returned: object) -> Observation:
    return returned if isinstance(returned, Mapping) else {}


def _params(callspec: Any) -> Params:
    """Return the parameters of a parametrised test (`callspec` of pytest) as axes and their values."""
    return tuple((name, _axis_value(name, value, callspec.indices[name])) for name, value in callspec.params.items())


def _axis_value(name: str, value: object, index: int) -> str | int | float:
    """Return a parameter of the test as the value of an axis: a finite number, a short text, or name and index."""
    if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
        return value if isinstance(value, int) else float(value)
    label = str(getattr(value, "__name__", value))
    return f"{name}{index}" if " at 0x" in label or len(label) > _MOST_LETTERS else _word(label)


def _word(text: str) -> str:
    return re.sub(r"[^\w.+/-]", "_", text)
