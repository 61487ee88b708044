"""Kernels of the latency suite: they compile, and every case passes the arguments that each of them takes."""

import ctypes
import functools
import re
from types import SimpleNamespace
from typing import ClassVar

import _grid
import numpy as np
import pytest
from _poison import overwrite
from test_latency import H200, SUITE, module

from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.model import Case, Facts
from gpubench.plugins.backend import Traits

FILES = tuple(f"latency/{name}.cu" for name in ("chase", "near", "costs", "units"))
WIDTHS = {"u64": 8, "u32": 4, "float": 4, "double": 8}


@functools.cache
def parameters(text):
    text = re.sub(r"\\\n", " ", text)
    for name, arguments in re.findall(r"#define (ORDER) (.*)", text):
        text = re.sub(rf"\b{name}\b", arguments, text)
    for macro, names, body in re.findall(r'#define (\w+)\(([^)]*)\)\s+(extern "C".*)', text):
        for given in re.findall(rf"^{macro}\((.*)\)$", text, re.MULTILINE):
            written = body
            for name, word in zip(names.split(","), given.split(",", names.count(",")), strict=True):
                written = re.sub(rf"\b{name.strip()}\b", word.strip(), written)
            text += "\n" + written
    kernel = r'extern "C" __global__ (?:void\s+)?(?:__\w+__\([^)]*\)\s*)?(?:void\s+)?(\w+)\(([^)]*)\)'
    return {
        name: [argument.strip() for argument in arguments.split(",") if argument.strip()]
        for name, arguments in re.findall(kernel, text)
    }


class CheckedKernel:
    launched: ClassVar[list[str]] = []

    def __init__(self, name, wanted):
        self.name, self.wanted = name, wanted

    def __call__(self, grid, block, args, shared_bytes=0):
        """Assert that the arguments have the types of the kernel's parameters."""
        CheckedKernel.launched.append(self.name)
        assert len(args) == len(self.wanted), (self.name, self.wanted)
        assert shared_bytes <= H200_TRAITS.max_shared_bytes
        assert np.prod(block) <= 1024
        for value, wanted in zip(args, self.wanted, strict=True):
            if "*" in wanted:
                assert isinstance(value, np.ndarray | np.uint64), (self.name, wanted)
            else:
                assert isinstance(value, np.generic), (self.name, wanted)
                assert value.itemsize == WIDTHS[wanted.split()[0]], (self.name, wanted)

    def allow_large_clusters(self):
        assert self.name == "cluster_barrier"

    def symbol(self, name, nbytes):
        assert re.search(rf"__constant__ \w+ {name}\[", _grid.source("latency/near.cu"))
        return np.zeros(nbytes, np.uint8)


H200_TRAITS = Traits(
    "nvidia",
    "sm_90",
    "cuda",
    ("hot", "cold", "graph"),
    "cuda events",
    32,
    True,
    227 * 1024,
    frozenset({"clusters", "pool"}),
)


class InertStream(SimpleNamespace):
    """A stream whose every method does nothing."""

    ptr = 0

    def __getattr__(self, name):
        return lambda *args: InertStream()


class DryDevice:
    """An H200 on which nothing runs; it keeps the launches of a case."""

    device, traits = H200, H200_TRAITS

    def __init__(self):
        """Prepare the parts of CuPy that a case uses; large arrays are shortened."""
        cuda = SimpleNamespace(
            get_current_stream=InertStream,
            Stream=lambda **_: InertStream(),
            Event=lambda **_: InertStream(),
            Device=lambda: SimpleNamespace(id=0),
            runtime=InertStream(),
        )
        self.xp = SimpleNamespace(
            cuda=cuda,
            uint8=np.uint8,
            uint32=np.uint32,
            uint64=np.uint64,
            zeros=np.zeros,
            zeros_like=np.zeros_like,
            asarray=np.asarray,
            empty=lambda count, dtype: np.empty(min(count, 2**20), dtype),
        )
        self.synchronize = self.flush = lambda: None
        self.to_host = np.array
        self.pinned = lambda nbytes: np.zeros(nbytes, np.uint8)
        self.peer_memory = lambda peer, nbytes: np.zeros(nbytes, np.uint8)
        self.copy = lambda target, data: np.copyto(target, data)
        self.free_bytes = lambda: H200.memory_bytes

    def kernel(self, text, name, defines):
        assert set(defines) <= {"CLUSTER"}
        return CheckedKernel(name, parameters(text)[name])


def bench_of(case):
    # type: ignore[arg-type]
    return Bench(DryDevice(), case, Target(Facts((H200,)), H200), SUITE.package, 0, devices=(H200, H200))


def test_every_case_of_a_gpu_hands_its_kernels_what_they_take(monkeypatch):
    monkeypatch.setattr(module("_slices"), "census", lambda bench: list(range(132)))
    monkeypatch.setattr(module("_slices").SliceLatencies, "median", lambda self: self._run())
    monkeypatch.setattr(module("_spaces").SingleLoads, "median", lambda self: self._walk.call())
    monkeypatch.setattr(module("_round_trips").RoundTrips, "ask", lambda self, first, last: last)
    monkeypatch.setattr(CheckedKernel, "launched", [])
    monkeypatch.setattr(module("_costs").lib, "Driver", OrderedDriver)
    for case in SUITE.cases(Target(Facts((H200,)), H200, "full")):
        task = SUITE.build(bench_of(case))
        overwrite(task)
        for stage in task.stages.values():
            (stage.inputs or stage.call)()
            stage.call()
    parameter_names = {name for file in FILES for name in parameters(_grid.source(file))}
    not_launched = parameter_names - {"name"} - set(CheckedKernel.launched)  # `name` is a parameter of the macro
    assert not_launched == {"census", "expected"}


class OrderedDriver:
    """CUDA's driver whose streams work at once: a wait for a word that is not written yet would never end."""

    def __init__(self):
        self.bindings = SimpleNamespace(CUstream=lambda pointer: pointer)

    def __call__(self, name, stream, address, value, flags):
        word = ctypes.c_uint32.from_address(address)
        assert flags == 0
        if name == "cuStreamWriteValue32":
            word.value = value
        else:
            assert (name, word.value >= value) == ("cuStreamWaitValue32", True)


def test_streams_wait_only_for_words_that_are_written_before(monkeypatch):
    monkeypatch.setattr(module("_costs").lib, "Driver", OrderedDriver)
    task = SUITE.build(bench_of(Case("latency", "stream_value", ())))
    for _ in range(3):
        task.stages[""].call()
        task.check()
    cells = dict(zip(task.check.__code__.co_freevars, task.check.__closure__, strict=True))  # type: ignore[attr-defined]
    cells["flags"].cell_contents[0] += 1
    with pytest.raises(WrongAnswer, match="1 of 2 words"):
        task.check()


@pytest.mark.parametrize(
    ("name", "axis", "value", "reason"),
    [
        ("chase", "size_bytes", 2**38, r"needs 256\.0 GiB of memory, 140\.0 GiB are free"),
        ("reach", "reach_bytes", 2**38, r"needs 256\.0 GiB of memory, 140\.0 GiB are free"),
        ("loaded", "units", 500, "units"),
        ("barrier", "blocks", 500, "units"),
        ("cluster", "size_bytes", 2**14, "sm_90"),
    ],
)
def test_what_a_gpu_does_not_have_is_a_skip_with_the_reason(name, axis, value, reason, monkeypatch):
    if name == "cluster":
        amd = Traits("amd", "gfx942", "hip", ("hot",), "hip events", 64, True, 2**16)
        monkeypatch.setattr(DryDevice, "traits", amd)
    with pytest.raises(Skip, match=reason):
        SUITE.build(bench_of(Case("latency", name, ((axis, value),))))
