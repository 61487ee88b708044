"""Cards on paper: their inventory by the real backend, the plan of all suites, and every kernel that the plan launches.

A case is built, and its calls are called, on a device whose arrays have addresses and sizes but no contents; a kernel
keeps its launches. Nothing is computed or measured. Cards that nobody here owns are described in devices/cards.toml.
"""

import ctypes
import dataclasses
import functools
import hashlib
import json
import mmap
import os
import re
import sys
import types
import weakref
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import _hiprtc
import _nvrtc
import numpy as np
from _modules import room_module

from gpubench import plugins
from gpubench.authoring.bench import Bench
from gpubench.base.errors import GpubenchError, Skip
from gpubench.devices.backends import _gpu_facts
from gpubench.devices.backends._host_memory import HOST_KINDS, host_memory
from gpubench.devices.backends._paper import ARCHS, CARDS, PaperRuntime, facts_of
from gpubench.measuring import plan as planning
from gpubench.model import Architecture, Device, Settings
from gpubench.plugins.backend import Handle, KernelResources, Timing

SUITES = tuple(plugins.names("suites"))
GIB = 2**30
_LARGE = 2**16  # bytes from which on an array has no contents
_LAZY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
_PATIENCE_S = 0.02  # no other rank ever answers
_MOST_THREADS, _MOST_GRID = 1024, (2**31 - 1, 65535, 65535)


class PaperArray(np.ndarray):
    """An array of NumPy whose large contents are never written: only sizes, types and addresses are true."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data, mem=types.SimpleNamespace(ptr=self.ctypes.data))

    @property
    def device(self):
        return types.SimpleNamespace(id=0)

    def fill(self, value):
        if self.nbytes < _LARGE:
            super().fill(value)

    def __setitem__(self, key, value):
        if self.nbytes < _LARGE:
            super().__setitem__(key, value)

    def get(self):
        return np.asarray(self)

    def copy(self, order="C"):
        return super().copy() if self.nbytes < _LARGE else blank(self.shape, self.dtype)

    def astype(self, dtype, **fields):
        return super().astype(dtype, **fields) if self.nbytes < _LARGE else blank(self.shape, dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **fields):
        plain = [np.asarray(value) if isinstance(value, PaperArray) else value for value in inputs]
        if max(getattr(value, "nbytes", 0) for value in plain) < _LARGE:
            written = {"out": tuple(np.asarray(array) for array in out)} if out else {}
            result = getattr(ufunc, method)(*plain, **written, **fields)
            return out[0] if out else result.view(PaperArray) if isinstance(result, np.ndarray) else result
        if out:
            return out[0]
        tiny = [np.zeros((1,) * np.ndim(value), getattr(value, "dtype", type(value))) for value in plain]
        if method != "__call__":
            return getattr(ufunc, method)(tiny[0], **fields)
        if ufunc.signature:
            shape = (
                *np.broadcast_shapes(*(value.shape[:-2] for value in plain)),
                plain[0].shape[-2],
                plain[1].shape[-1],
            )
        else:
            shape = np.broadcast_shapes(*(np.shape(value) for value in plain))
        return blank(shape, ufunc(*tiny).dtype)


class Memory:
    """The memory of a card: it counts what is allocated, and the most that ever was."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0

    def take(self, nbytes: int) -> None:
        self.used += nbytes
        if self.used > self.size:
            raise MemoryError(f"{self.used / GIB:.1f} of {self.size / GIB:.1f} GiB are asked for")

    def give(self, nbytes: int) -> None:
        self.used -= nbytes


_memory: Memory | None = None


def blank(shape, dtype, order="C"):
    """Return a new array of zeros, whose pages the system gives at their first write; the card counts its bytes."""
    shape = tuple(int(size) for size in shape) if isinstance(shape, tuple | list) else (int(shape),)
    nbytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    if nbytes < _LARGE:
        return np.zeros(shape, dtype).view(PaperArray)
    if _memory:
        _memory.take(nbytes)
    array = np.frombuffer(mmap.mmap(-1, nbytes, _LAZY), dtype).reshape(shape).view(PaperArray)
    if _memory:
        weakref.finalize(array, _memory.give, nbytes)
    return array


def _pinned(nbytes):
    """Return host memory of which nothing is kept: its pages come at their first write."""
    return np.frombuffer(mmap.mmap(-1, max(1, nbytes), _LAZY), np.uint8)[:nbytes]


class Xp:
    """NumPy in the place of CuPy, with large arrays that have no contents."""

    float16, float32, float64 = np.float16, np.float32, np.float64
    ndarray = PaperArray

    def __init__(self) -> None:
        self.cuda = MagicMock()
        self.cuda.runtime.hostAlloc = lambda nbytes, flags: _pinned(nbytes).ctypes.data
        self.cuda.get_current_stream.return_value.ptr = self.cuda.Stream.return_value.ptr = 1
        self.ElementwiseKernel = self.ReductionKernel = lambda *_, **__: lambda *arrays, **__: arrays[-1]
        self.cuda.runtime.CUDARuntimeError = RuntimeError

    def empty(self, shape, dtype="float64", order="C"):
        return blank(shape, dtype)

    zeros = ones = empty

    def full(self, shape, value, dtype=None):
        return blank(shape, dtype or np.asarray(value).dtype)

    def empty_like(self, array, dtype=None):
        return blank(array.shape, dtype or array.dtype)

    zeros_like = ones_like = empty_like

    def asarray(self, values, dtype=None):
        values = np.asarray(values, dtype)
        array = blank(values.shape, values.dtype)
        array[...] = values
        return array

    array = ascontiguousarray = asarray

    def arange(self, *args, **fields):
        return np.arange(*args, **fields).view(PaperArray)

    def concatenate(self, arrays, axis=0):
        shape = list(arrays[0].shape)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        return blank(tuple(shape), arrays[0].dtype)

    def __getattr__(self, name):
        return getattr(np, name)


@dataclasses.dataclass
class Launches:
    """The launches of each kernel, (threads, shared bytes), by (source, macros) and name; what is wrong with them."""

    kernels: dict = dataclasses.field(default_factory=dict)
    sources: dict = dataclasses.field(default_factory=dict)
    faults: list = dataclasses.field(default_factory=list)


class PaperKernel:
    """A kernel that checks and keeps its launches."""

    def __init__(self, gpu, name, entry):
        self.gpu, self.name, self.entry = gpu, name, entry

    def __call__(self, grid, block, args, shared_bytes=0):
        limits, traits = self.gpu.card, self.gpu.traits
        threads = int(np.prod(block))
        faults = []
        if not 0 < threads <= _MOST_THREADS:
            faults.append(f"{threads} threads a block")
        if shared_bytes > traits.max_shared_bytes:
            faults.append(f"{shared_bytes} bytes of shared memory of {traits.max_shared_bytes}")
        if any(not 0 < size <= most for size, most in zip(grid, _MOST_GRID, strict=False)):
            faults.append(f"a grid of {grid}")
        if threads > limits["threads_unit"]:
            faults.append(f"{threads} threads of {limits['threads_unit']} an SM")
        self.entry[self.name].add((threads, shared_bytes))
        self.gpu.launches.faults += [f"{self.gpu.case}: {self.name}: {fault}" for fault in faults]

    def early(self, grid, block, args, shared_bytes=0):
        self(grid, block, args, shared_bytes)

    def resources(self, threads, shared_bytes=0):
        if self.gpu.runtime.is_hip:
            return None
        blocks = min(self.gpu.card["threads_unit"] // threads, 65536 // (32 * threads))
        if shared_bytes:
            blocks = min(blocks, self.gpu.card["shared_unit_kib"] * 1024 // (shared_bytes + 1024))
        return KernelResources(32, 0, 0, blocks)

    def keep_cache(self, threads):
        pass

    def symbol(self, name, nbytes):
        return blank(nbytes, np.uint8)


class Region:
    """Shared memory of a card."""

    def __init__(self, nbytes: int) -> None:
        self.array, self.handle = blank(nbytes, np.uint8), b"paper"

    def close(self) -> None:
        self.array = None


class Shared:
    """One kind of the card's memory that processes share."""

    def allocate(self, nbytes):
        return Region(nbytes)

    def export(self, buffer):
        return Handle(b"paper")

    def open(self, handle, nbytes):
        return Region(nbytes)


class PaperGpu:
    """An open card on paper."""

    def __init__(self, card: str, device: Device, launches: Launches) -> None:
        self.runtime = PaperRuntime(card)
        self.card, self.device, self.launches, self.case = self.runtime.card, device, launches, ""
        self.traits = _gpu_facts.traits_of(self.runtime, device)
        self.xp, self.stream = Xp(), 1
        self.xp.cuda.runtime.is_hip = self.runtime.is_hip
        self.memory = Memory(device.memory_bytes)

    def free_bytes(self):
        return self.memory.size - self.memory.used

    def kernel(self, source, name, defines):
        key = (
            hashlib.sha256(source.encode()).hexdigest(),
            tuple(sorted((key, str(value)) for key, value in defines.items())),
        )
        self.launches.sources[key[0]] = source
        entry = self.launches.kernels.setdefault(key, {})
        entry.setdefault(name, set())
        return PaperKernel(self, name, entry)

    def to_host(self, array):
        return np.asarray(array)

    def pinned(self, nbytes):
        return _pinned(nbytes)

    def copy(self, target, source):
        assert target.nbytes == source.nbytes

    def register(self, array):
        if "register" not in self.traits.features:
            raise Skip("CuPy on ROCm does not support registering host memory")
        return lambda: None

    def together(self, *calls, peer=None):
        for call in calls:
            call()

    def peer_memory(self, peer, nbytes):
        return np.empty(1, np.uint8).view(PaperArray) if not nbytes else blank(nbytes, np.uint8)

    def time(self, call, calls, mode="hot", gated=True, lead=None):
        call()
        return Timing((1e-3,) * (calls if mode in ("each", "cold") else 1), 1e-4)

    def now(self):
        return 0.0

    def launches_of(self, call):
        return 1

    def share(self, nbytes):
        return Region(nbytes)

    def open_shared(self, handle, nbytes):
        return Region(nbytes)

    def shared_memory(self, kind):
        return host_memory(kind) if kind in HOST_KINDS else Shared()

    def shared_event(self, handle=b""):
        if self.runtime.is_hip:
            raise Skip("CuPy on ROCm does not support events shared between processes")
        return MagicMock(export=lambda: b"event")

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **fields: None


class NeedsProcessError(GpubenchError):
    """The case starts a program, which a card on paper cannot."""


@dataclasses.dataclass
class PaperBench(Bench):
    """A bench on a card on paper, which starts no program."""

    def helper(self, function, name="the helper", **fields):
        raise NeedsProcessError(f"starts {name}")

    def hand_over(self, handle, source=0):
        return handle or Handle(b"paper")

    def sockets(self, count=1):
        return [MagicMock() for _ in range(count)]

    def board(self, *slots, limit_s=20.0, has_beats=False, **fields):
        return Bench.board(self, *slots, limit_s=_PATIENCE_S, **fields)


def _product(bench, product, *rest):
    """Return the library's product as a call that does nothing."""
    vendor = room_module("suites", "_matrix.vendor")
    return vendor.ProductCall(lambda: None, {"library": "on paper", "algorithm": "none"})


class _Proposals:
    """cuBLASLt's heuristics on paper: as many algorithms as are asked for."""

    def __init__(self, *problem):
        pass

    def proposals(self, most):
        return [_product(None, None) for _ in range(most)]


def libraries(patch) -> None:
    """Replace the vendors' libraries by calls that do nothing, in a way that `patch` undoes."""
    for name in (
        "cupy",
        "cupy.cuda",
        "cupy.cuda.nccl",
        "cupy_backends",
        "cupy_backends.cuda",
        "cupy_backends.cuda.libs",
    ):
        patch.setitem(sys.modules, name, MagicMock())
    for module in ("tensor._hgemm", "inference._latent", "inference._weights", "_matrix.gemv"):
        patch.setattr(room_module("suites", module), "tensor_map", lambda *_, **__: np.zeros(128, np.uint8))
    vendor = room_module("suites", "_matrix.vendor")
    for name in ("_gemm_ex", "_matmul", "_hipblaslt"):
        patch.setattr(vendor, name, _product)
    patch.setattr(vendor, "_binding", lambda: types.SimpleNamespace(cuBLASLtError=type("LtError", (Exception,), {})))
    patch.setattr(vendor, "_Problem", _Proposals)


@dataclasses.dataclass
class Parade:
    """The result of a card: how its cases ended, by suite, and its kernels."""

    card: str
    planned: Counter = dataclasses.field(default_factory=Counter)
    skipped: dict = dataclasses.field(default_factory=dict)  # case id → reason
    missed: dict = dataclasses.field(default_factory=dict)  # case id → why it was not built on paper
    launches: Launches = dataclasses.field(default_factory=Launches)


def _answers(ranks: int, value: object) -> list[object]:
    """Return what the ranks of a case would exchange if all said the same."""
    return [value] * ranks


def parade(card: str, tier: str, suites=SUITES, filters=()) -> Parade:
    """Plan the suites on the card, build each case, and call each of its calls once."""
    global _memory
    facts, result = facts_of(card), Parade(card)
    plan = planning.make(facts, Settings(tuple(suites), (facts.devices[0].id,), tier, filters=tuple(filters)))
    gpu = PaperGpu(card, facts.devices[0], result.launches)
    for job in plan.jobs:
        case = job.case
        result.planned[case.suite] += 1
        if message := planning.missing_devices(job):
            result.skipped[case.id] = message
            continue
        gpu.case, gpu.memory = case.id, Memory(facts.devices[0].memory_bytes)
        _memory = gpu.memory
        suite = planning.load_suite(case.suite)
        ranks = max(1, case.ranks)
        bench = PaperBench(
            gpu, case, plan.target(job), suite.package, 1, world=ranks, devices=job.devices,
            peers=tuple(job.devices[rank % len(job.devices)] for rank in range(ranks)),
            exchange=functools.partial(_answers, ranks),
        )  # fmt: skip
        try:
            task = suite.build(bench)
            for stage in task.stages.values():
                for call in (*(stage.rotation or (stage.call,)), stage.inputs, stage.doubled):
                    if call and stage.clock != "self":
                        call()
        except Skip as skip:
            result.skipped[case.id] = str(skip)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with the case
            result.missed[case.id] = f"{type(error).__name__}: {error}"
        finally:
            _memory = None
    return result


# What stops a case on paper alone: programs, other ranks, data, and libraries that need a GPU or are not installed.
ON_PAPER = re.compile(
    "numba finds no GPU|NeedsProcessError|StalledError|NvcompError|is not installed|nvmath-python|cuda-bindings|"
    "libcuda.so.1|hipCOMP is not usable|blocks ran on 1 SMs|relative error of nan|'NoneType' and 'float'"
)  # fmt: skip
_OLDER = re.compile(r"(sm_\d+|gfx\w+)(?:, gfx90a)? or newer[^;]*, not (sm_\d+|gfx\w+)$")


def false_reasons(result: Parade) -> list[str]:
    """Return the cases whose reason for a skip contradicts the card, and those that failed for no listed reason."""
    found = [f"{case}: {why}" for case, why in result.missed.items() if not ON_PAPER.search(why)]
    card = Architecture.parse(CARDS[result.card]["arch"])
    if card.vendor == "amd":  # whose owner must not be told to install packages of NVIDIA's
        every = {**result.skipped, **result.missed}
        found += [f"{case}: {why}" for case, why in every.items() if re.search(r"pip install.*cu1[23]", why)]
    for case, why in result.skipped.items():
        match = _OLDER.search(why)
        if match and (match[2] != card.name or (match[1][:2] == match[2][:2] and Architecture.parse(match[1]) <= card)):
            found.append(f"{case}: {why}")
    return found


@functools.cache
def nvrtc(arch: str) -> ctypes.CDLL | None:
    """Return NVRTC for the architecture: of CUDA 12 for sm_70, which CUDA 13 does not know; None without it."""
    folder = os.environ.get("GPUBENCH_NVRTC12" if ARCHS[arch].get("cuda") == 12 else "GPUBENCH_NVRTC13", "")
    libraries = sorted(Path(folder).glob("nvidia/*/lib/libnvrtc*.so.*")) if folder else []
    for path in libraries:
        if "builtins" in path.name and "alt" not in path.name:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    return next((ctypes.CDLL(str(path)) for path in libraries if re.fullmatch(r"libnvrtc\.so\.\d+", path.name)), None)


_USED = re.compile(r"entry function '(\w+)'.*?Used (\d+) registers(?:.*?(\d+) bytes smem)?", re.DOTALL)


def compile_faults(arch: str, launches: Launches, cards: list[str]) -> list[str]:
    """Compile every kernel of these launches; return what does not compile, and what exceeds an SM's registers."""
    faults, target = [], Architecture.parse(arch).target
    room = min(ARCHS[arch]["shared_kib"] for _ in cards) * 1024
    for (key, defines), names in launches.kernels.items():
        about, source = f"{sorted(names)} {dict(defines)}", launches.sources[key]
        if arch.startswith("gfx"):
            lines = "".join(f"#define {name} {value}\n" for name, value in defines)
            answer = _hiprtc.built(lines + source, arch)
            status, log, found = answer.status, answer.log, set(answer.kernels)
        else:
            options = [
                f"--gpu-architecture={target}",
                "--ptxas-options=-v",
                *(f"-D{name}={value}" for name, value in defines),
            ]
            status, log, _ = _nvrtc.built(source, options, nvrtc(arch))
            parts = re.split(r"(?=ptxas info\s*: Compiling entry)", log)
            used = {match[1]: match for part in parts if (match := _USED.search(part))}
            found = set(used)
            for name in names & used.keys() if status == 0 else ():
                registers, static = -(-int(used[name][2]) // 8) * 8, int(used[name][3] or 0)
                for threads, shared in names[name]:
                    if registers * -(-threads // 32) * 32 > 65536:
                        faults.append(f"{about}: {registers} registers of {threads} threads")
                    if static + shared > room:
                        faults.append(f"{about}: {static} + {shared} bytes of shared memory of {room}")
        if status:
            faults.append(f"{about}: {log[:500]}")
        elif missing := names.keys() - found:
            faults.append(f"{about}: no kernel {missing}")
    return faults


def table(rows: list[dict]) -> str:
    """Return cards × suites as text: planned, skipped with a reason, and not reached on paper."""
    lines = [("card", "kernels", *SUITES)]
    for row in rows:
        cells = (f"{planned}/{skipped}/{missed}" for planned, skipped, missed in row["suites"].values())
        lines.append((row["card"], str(row["kernels"]), *cells))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def row(result: Parade) -> dict:
    """Return a card's line of the table as plain values."""

    paper = {case for case, why in result.skipped.items() if ON_PAPER.search(why)}
    counts = [Counter(case.partition("/")[0] for case in cases)
              for cases in (result.skipped.keys() - paper, result.missed.keys() | paper)]  # fmt: skip
    suites = {suite: (result.planned[suite], *(count[suite] for count in counts)) for suite in SUITES}
    return {"card": result.card, "kernels": len(result.launches.kernels), "suites": suites}


if __name__ == "__main__":
    found = [json.loads(path.read_text()) for path in sorted(Path(sys.argv[1]).glob("*.json"))]
    sys.stdout.write("card × suite: planned / skipped for a reason / stopped only on paper\n" + table(found) + "\n")
