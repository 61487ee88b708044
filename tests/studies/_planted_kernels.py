"""Mutations of the product's kernels: a line of a `.cu` file is changed, as `planted_kernels.toml` says.

They run on the simulated grid, on the GPU on paper, or on a GPU."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.model import Case, Facts

_FOLDER = tempfile.TemporaryDirectory(prefix="gpubench-planted-")


@dataclasses.dataclass(frozen=True)
class KernelFault:
    """A text in a kernel's file and its replacement, and the suite, case and parameters that run the kernel."""

    name: str
    file: str
    old: str
    new: str
    suite: str
    case: str
    params: Mapping[str, Any]


def faults() -> dict[str, KernelFault]:
    """Return the faults of planted_kernels.toml by name."""
    table = tomllib.loads(Path(__file__).with_name("planted_kernels.toml").read_text())
    found = {}
    for fault in table["fault"]:
        case = table["case"][fault["case"]]
        texts = (fault[key] for key in ("name", "file", "old", "new"))
        found[fault["name"]] = KernelFault(*texts, case["suite"], case["name"], case["params"])
    return found


@functools.cache
def _changed(place: str, old: str, new: str) -> Path:
    text = Path(place).read_text()
    assert old in text, f"{old!r} is not in {place}"
    changed = Path(_FOLDER.name) / f"{hashlib.sha256((place + old + new).encode()).hexdigest()[:16]}.cu"
    changed.write_text(text.replace(old, new))
    return changed


def task_of(kind: type[Bench], device: Any, fault: KernelFault, seed: int, is_twin: bool) -> Task:
    """Return the task of a fault's case on an open device; `kind` is the class of its bench."""

    class FaultyBench(kind):  # type: ignore[misc, valid-type]
        def _find_source(self, file: str) -> Any:
            place = super()._find_source(file)
            return _changed(str(place), fault.old, fault.new) if file == fault.file and not is_twin else place

    suite, facts = plugins.load("suites", fault.suite), Facts((device.device,))
    case = Case(fault.suite, fault.case, tuple(fault.params.items()))
    target = Target(facts, device.device, "smoke")
    return suite.build(FaultyBench(device, case, target, suite.package, seed, devices=facts.devices))
