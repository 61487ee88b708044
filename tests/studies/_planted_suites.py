"""Mutations of the product's own suites: their host code is replaced in part, or a line of a kernel is changed.

A kernel of a `.cu` file runs on the simulated grid (`_grid_device`), and its case on the GPU on paper. Every entry
returns the task of the unmutated case, too, if it is asked for its twin."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _grid import kernel, path_of
from _grid_device import PAPER, PaperBench, PaperGpu
from _modules import shared_modules, suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.model import Case, Facts
from gpubench.plugins.backend import Traits

TRAITS = Traits("nvidia", "sm_90", "cuda", ("hot",), "perf_counter", warp=32, is_gpu=True)


@dataclasses.dataclass
class MutantBench(PaperBench):
    """A bench on the GPU on paper that changes `old` to `new` in the kernel's file `mutated`."""

    mutated: str = ""
    old: str = ""
    new: str = ""

    def kernel(self, file: str, name: str, **defines: int) -> Any:
        place = self._find_source(file)
        if file != self.mutated:
            return kernel(path_of(place), name, **defines)
        return kernel(str(_changed(str(place), self.old, self.new)), name, **defines)


_FOLDER = tempfile.TemporaryDirectory(prefix="gpubench-mutants-")


@functools.cache
def _changed(place: str, old: str, new: str) -> Path:
    text = Path(place).read_text()
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {place}"
    changed = Path(_FOLDER.name) / f"{abs(hash((place, old, new)))}.cu"
    changed.write_text(text.replace(old, new))
    return changed


def on_paper(suite: str, case: str, seed: int, change: tuple[str, str, str], **params: Any) -> Task:
    loaded = plugins.load("suites", suite)
    gpu = PaperGpu(TRAITS, device=dataclasses.replace(PAPER, details=()))
    named = Case(suite, case, tuple(params.items()))
    target = Target(Facts((PAPER,)), PAPER, "smoke")
    bench = MutantBench(gpu, named, target, loaded.package, seed, devices=(PAPER,))
    bench.mutated, bench.old, bench.new = change
    return gpu, bench, loaded


def host_bench(suite: str, case: str, seed: int, **params: Any) -> Any:
    backend = plugins.load("backends", "host")
    (host,) = backend.devices()
    loaded = plugins.load("suites", suite)
    named = Case(suite, case, tuple(params.items()))
    device = backend.open(host)
    return loaded, Bench(device, named, Target(Facts((host,)), host, "smoke"), loaded.package, seed, devices=(host,))


@contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute, or an entry of a dictionary, inside of the `with` block."""
    get, put = (dict.__getitem__, dict.__setitem__) if isinstance(place, dict) else (getattr, setattr)
    kept = get(place, name)
    put(place, name, value)
    try:
        yield
    finally:
        put(place, name, kept)


# name → suite, case, parameters, and the change of a kernel: file, old text, new text.
COPY = ("bandwidth", "copy", {"size_bytes": 2**14, "dtype": "float32"})
READ = ("bandwidth", "read", {"size_bytes": 2**20, "dtype": "float32"})
TRIAD = ("bandwidth", "triad", {"size_bytes": 2**14, "dtype": "float32"})
DOT = ("bandwidth", "dot", {"size_bytes": 2**14, "dtype": "float32"})
SET_READ = ("bandwidth", "working_set", {"kernel": "read", "size_bytes": 2**16})
SET_WRITE = ("bandwidth", "working_set", {"kernel": "write", "size_bytes": 2**16})
RANDOM = ("bandwidth", "random", {"access": "read", "chunk_bytes": 64, "size_bytes": 2**16})
RANDOM_WRITE = ("bandwidth", "random", {"access": "write", "chunk_bytes": 64, "size_bytes": 2**16})
CHASE = ("latency", "chase", {"size_bytes": 2**15})
GEMV = ("gemm", "gemv", {"path": "warp", "weights": "int8", "size_bytes": 2**16})
GEMV_HALF = ("gemm", "gemv", {"path": "warp", "weights": "float16", "size_bytes": 2**16})
PAGES = (
    "inference",
    "kv_pages",
    {"page": 16, "order": "shuffled", "batch": 2, "context": 100},
)
KERNELS: dict[str, tuple[str, str, dict[str, Any], tuple[str, str, str]]] = {
    name: (*case, change)
    for name, case, change in (
        (
            "copy: half of the grid",
            COPY,
            ("stream.cu", "EACH(i) a[i] = b[i];", "EACH(i) if (i < n / LANES / 2) a[i] = b[i];"),
        ),
        (
            "copy: the last vector is missing",
            COPY,
            ("stream.cu", "EACH(i) a[i] = b[i];", "EACH(i) if (i + 1 < n / LANES) a[i] = b[i];"),
        ),
        (
            "copy: vectors change places in pairs",
            COPY,
            ("stream.cu", "EACH(i) a[i] = b[i];", "EACH(i) a[i] = b[i ^ 1];"),
        ),
        (
            "copy: writes the first vector everywhere",
            COPY,
            ("stream.cu", "EACH(i) a[i] = b[i];", "EACH(i) a[i] = b[0];"),
        ),
        ("triad: c is not read", TRIAD, ("stream.cu", "v.x[lane] += s * w.x[lane];", "v.x[lane] += s * v.x[lane];")),
        (
            "triad: the factor is off by 1e-6",
            TRIAD,
            ("stream.cu", "v.x[lane] += s * w.x[lane];", "v.x[lane] += s * 1.000001f * w.x[lane];"),
        ),
        (
            "triad: one lane of a vector is missing",
            TRIAD,
            (
                "stream.cu",
                "for (int lane = 0; lane < LANES; ++lane) v.x[lane] += s * w.x[lane];",
                "for (int lane = 0; lane + 1 < LANES; ++lane) v.x[lane] += s * w.x[lane];",
            ),
        ),
        ("read: half of the array twice", READ, ("stream.cu", "mine ^= bits_of(b[i]);", "mine ^= bits_of(b[i / 2]);")),
        (
            "read: the rest behind the batches is missing",
            READ,
            ("stream.cu", "for (; i < vectors; i += step) mine ^= bits_of(b[i]);", ""),
        ),
        (
            "dot: half of the products, twice",
            DOT,
            ("stream.cu", "mine += product(b[i], c[i]);", "mine += 2 * product(b[i / 2], c[i / 2]);"),
        ),
        (
            "dot: sums in single precision",
            DOT,
            ("stream.cu", "mine += product(b[i], c[i]);", "mine = (float)mine + product(b[i], c[i]);"),
        ),
        (
            "dot: products in half precision",
            DOT,
            (
                "stream.cu",
                "sum += v.x[lane] * w.x[lane];",
                "sum += (REAL)((int)(v.x[lane] * 2048) / 2048.0f) * w.x[lane];",
            ),
        ),
        (
            "cached read: the second half of the turns is dropped",
            SET_READ,
            (
                "cache.cu",
                "cached_read(const uint4* set, u32 vectors, u32 tile, u32 turns, u32 hop, u64* parts) {\n",
                "cached_read(const uint4* set, u32 vectors, u32 tile, u32 turns, u32 hop, u64* parts) {\n    turns /= 2;\n",
            ),
        ),
        (
            "cached read: every turn reads the first tile",
            SET_READ,
            (
                "cache.cu",
                "for (int k = 0; k < BATCH; ++k) v[k] = gb_load_l2(set + i + k * THREADS);\n        mine = turned(mine);",
                "for (int k = 0; k < BATCH; ++k) v[k] = gb_load_l2(set + threadIdx.x + k * THREADS);\n        mine = turned(mine);",
            ),
        ),
        (
            "cached write: a single turn",
            SET_WRITE,
            (
                "cache.cu",
                "cached_write(uint4* set, u32 vectors, u32 tile, u32 turns, u32 hop, u32 key) {\n",
                "cached_write(uint4* set, u32 vectors, u32 tile, u32 turns, u32 hop, u32 key) {\n    turns = 1;\n",
            ),
        ),
        (
            "random read: in order",
            RANDOM,
            ("access.cu", "return (u64)x << shift | (t & ((1u << shift) - 1));", "return t;"),
        ),
        (
            "random read: half of the chunk",
            RANDOM,
            (
                "access.cu",
                "mine ^= bits_of(gb_word(words + order(t)));",
                "mine ^= bits_of(gb_word(words + (order(t) & ~1ull)));",
            ),
        ),
        (
            "random write: chunks collide",
            RANDOM_WRITE,
            (
                "access.cu",
                "x = (x * 0x85ebca6bu) & mask, x ^= x >> half;",
                "x = (x * 0x85ebca6au) & mask, x ^= x >> half;",
            ),
        ),
        (
            "chase: half of the steps",
            CHASE,
            (
                "chase.cu",
                "for (u64 i = 0; i < steps; ++i) here = load(here);                    ",
                "for (u64 i = 0; i < steps / 2; ++i) here = load(here);",
            ),
        ),
        (
            "chase: two chains of half the steps",
            CHASE,
            (
                "chase.cu",
                "for (u64 i = 0; i < steps; ++i) here = load(here);                    ",
                "for (u64 i = 0, o = here; i < steps; i += 2) here = load(here), o = load(o);",
            ),
        ),
        (
            "chase: the ring goes through memory in order",
            CHASE,
            (
                "chase.cu",
                "return i * stride + (gb_random(add, i) & others) * LINE_BYTES;",
                "return (i + add) % nodes * stride;",
            ),
        ),
        ("gemv: the scale of the first group for all", GEMV, ("gemv.cu", "+ place / (GROUP / PER_VECTOR);", ";")),
        (
            "gemv: the last vectors of a row are missing",
            GEMV_HALF,
            (
                "gemv.cu",
                "if (v < vectors) raw[r] = gb_stream(w + at[r] + v);",
                "if (v + 1 < vectors) raw[r] = gb_stream(w + at[r] + v);",
            ),
        ),
        (
            "gemv: x is the same for all vectors",
            GEMV_HALF,
            ("gemv.cu", "widen(x + (u64)place * X_VECTORS, wide);", "widen(x, wide);"),
        ),
        (
            "attention: the newest token is missing",
            PAGES,
            ("attention.cu", "token < end ? token : end - 1", "token < end - 1 ? token : end - 2"),
        ),
        (
            "attention: every page is the first one",
            PAGES,
            (
                "attention.cu",
                "return table[(u64)sequence * (capacity / PAGE) + token / PAGE];",
                "return table[(u64)sequence * (capacity / PAGE)];",
            ),
        ),
    )
}


# Mutations of host code: each yields the suite's task in a context in which a part of it is replaced.

HOST: dict[str, Callable[[int], Any]] = {}


def on_host(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        HOST[name] = function
        return function

    return add


def parts_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables that a function takes from the one around it."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def product(seed: int, dtype: str = "float32") -> tuple[Any, Task, Any, Any, Any]:
    """Return the host device, the task of a product of the suite gemm, and its matrices a, b and c."""
    formats, (host, freivalds) = shared_modules("_matrix.formats")[0], (suite_module("gemm", "_host"), None)
    del freivalds
    _, bench = host_bench("gemm", "square", seed, dtype=dtype, n=192)
    task = host.host_product(bench, formats.PRECISIONS[dtype], formats.Shape(192, 160, 224))
    matrices = parts_of(task.stages[""].call)
    return bench.device, task, matrices["a"], matrices["b"], matrices["c"]


def with_call(task: Task, call: Callable[[], object]) -> Task:
    ((name, stage),) = task.stages.items()
    return dataclasses.replace(task, stages={name: dataclasses.replace(stage, call=call)})


def product_mutation(name: str, dtype: str = "float32") -> Callable[[Callable[..., Any]], Any]:
    """Declare a call in place of c = a·b; the function gets a, b and c."""

    def add(function: Callable[[Any, Any, Any], object]) -> Any:
        @contextmanager
        def build(seed: int, is_twin: bool) -> Iterator[tuple[Any, Task]]:
            device, task, a, b, c = product(seed, dtype)
            yield device, task if is_twin else with_call(task, lambda: function(a, b, c))

        HOST[f"product: {name}"] = build
        return function

    return add


@product_mutation("half of k, twice")
def _half_of_k(a: Any, b: Any, c: Any) -> None:
    half = a.shape[1] // 2
    np.matmul(2 * a[:, :half], b[:half], out=c)


@product_mutation("k is one too small")
def _k_minus_one(a: Any, b: Any, c: Any) -> None:
    np.matmul(a[:, :-1], b[:-1], out=c)


@product_mutation("alpha is 1.001")
def _alpha(a: Any, b: Any, c: Any) -> None:
    np.matmul(a, b, out=c)
    c *= np.float32(1.001)


@product_mutation("beta is 1")
def _beta(a: Any, b: Any, c: Any) -> None:
    c += a @ b


@product_mutation("the result is transposed in blocks")
def _transposed(a: Any, b: Any, c: Any) -> None:
    np.matmul(a, b, out=c)
    c[:128, :128] = c[:128, :128].T.copy()


@product_mutation("one row is missing")
def _row(a: Any, b: Any, c: Any) -> None:
    np.matmul(a[:-1], b, out=c[:-1])


@product_mutation("one row is that of another")
def _other_row(a: Any, b: Any, c: Any) -> None:
    np.matmul(a, b, out=c)
    c[-1] = c[-2]


@product_mutation("inputs in half precision")
def _halves(a: Any, b: Any, c: Any) -> None:
    np.matmul(a.astype(np.float16).astype(np.float32), b.astype(np.float16).astype(np.float32), out=c)


@product_mutation("single in place of double precision", "float64")
def _single(a: Any, b: Any, c: Any) -> None:
    c[:] = a.astype(np.float32) @ b.astype(np.float32)


@product_mutation("inputs in twelve bits of fraction")
def _bits(a: Any, b: Any, c: Any) -> None:
    np.matmul((a.view(np.uint32) & np.uint32(0xFFFFF800)).view(np.float32), b, out=c)


@contextmanager
def trip(seed: int, change: Callable[[Any], Any] | None, codec: str = "zstd-1") -> Iterator[tuple[Any, Task]]:
    """Yield the device and the round trip of the suite compression on the host, with its codec or itself changed."""
    roundtrip, codecs = suite_module("compression", "_roundtrip"), suite_module("compression", "_codecs_host")
    _, bench = host_bench(
        "compression", "roundtrip", seed, corpus="ids", codec=codec, size_bytes=2**19, chunk_bytes=2**16
    )
    source, total = roundtrip._corpora.source_of(bench, "ids", 2**19)
    opened = codecs.HostRoundTrip(codecs.CODECS[codec](), source.repeated(total), 2**16)
    if change is not None:
        change(opened)
    yield bench.device, roundtrip._task(opened, total, source.description)


def codec_mutation(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a change of a round trip of the suite compression."""

    def add(change: Callable[[Any], Any]) -> Any:
        HOST[f"codec: {name}"] = lambda seed, is_twin: trip(seed, None if is_twin else change)
        return change

    return add


def _put(trip: Any, **parts: Any) -> None:
    trip.codec = dataclasses.replace(trip.codec, **parts)


@codec_mutation("chunks are stored as they are")
def _stored(trip: Any) -> None:
    _put(trip, squeeze=lambda: bytes, restore=lambda chunk, size: bytes(chunk))


@codec_mutation("the compressor keeps answers by input")
def _kept_compressed(trip: Any) -> None:
    squeeze, kept = trip.codec.squeeze(), {}

    def remember(chunk: Any) -> bytes:
        key = (len(chunk), bytes(chunk[:64]))
        if key not in kept:
            kept[key] = squeeze(chunk)
        return kept[key]

    _put(trip, squeeze=lambda: remember)


@codec_mutation("the decompressor keeps answers by input")
def _kept_restored(trip: Any) -> None:
    restore, kept = trip.codec.restore, {}

    def remember(chunk: Any, size: int) -> bytes:
        key = (len(chunk), bytes(chunk[:64]))
        if key not in kept:
            kept[key] = restore(chunk, size)
        return kept[key]

    _put(trip, restore=remember)


@codec_mutation("the decompressor returns the answers of the call before")
def _restored_before(trip: Any) -> None:
    restore = trip.restore

    def call() -> None:
        before = trip.__dict__.setdefault("before", None)
        restore()
        trip.before, trip.restored = trip.restored, before or trip.restored

    trip.restore = call


@codec_mutation("the decompressor writes only once")
def _restored_once(trip: Any) -> None:
    restore, kept = trip.restore, []

    def call() -> None:
        if not kept:
            restore()
            kept.append(trip.restored)
        trip.restored = kept[0]

    trip.restore = call


@codec_mutation("only half of the chunks are compressed")
def _half_compressed(trip: Any) -> None:
    compress, restore = trip.codec.squeeze(), trip.codec.restore
    turn = [0]

    def squeeze(chunk: Any) -> bytes:
        turn[0] += 1
        return b"\0" + compress(chunk) if turn[0] % 2 else b"\1" + bytes(chunk)

    def expand(chunk: Any, size: int) -> bytes:
        return restore(chunk[1:], size) if chunk[:1] == b"\0" else bytes(chunk[1:])

    _put(trip, squeeze=lambda: squeeze, restore=expand)


@codec_mutation("the last chunk is missing")
def _last_chunk(trip: Any) -> None:
    restore = trip.restore

    def call() -> None:
        kept = trip.compressed, trip.sizes, trip.restored
        trip.compressed, trip.sizes = trip.compressed[:-1], trip.sizes[:-1]
        restore()
        trip.compressed, trip.sizes = kept[:2]
        trip.restored = trip.restored + kept[2][-1:]

    trip.restore = call


@codec_mutation("compression runs once, then keeps its output")
def _compressed_once(trip: Any) -> None:
    compress, kept = trip.compress, []

    def call() -> None:
        if not kept:
            compress()
            kept.append(trip.compressed)
        trip.compressed = kept[0]

    trip.compress = call


@codec_mutation("a faster level than the one that is named")
def _level(trip: Any) -> None:
    codecs = suite_module("compression", "_codecs_host")
    _put(trip, squeeze=codecs.CODECS["lz4"]().squeeze, restore=codecs.CODECS["lz4"]().restore)


def bandwidth_mutation(case: str, name: str, **params: Any) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function in place of the compiled host kernel of a bandwidth case; it gets the kernel first."""

    def add(function: Callable[..., object]) -> Any:
        @contextmanager
        def build(seed: int, is_twin: bool) -> Iterator[tuple[Any, Task]]:
            loaded, bench = host_bench("bandwidth", case, seed, **params)
            compiled = shared_modules("_host")[0].KERNELS
            kernel = compiled[case]
            changed = kernel if is_twin else lambda *args: function(kernel, *args)
            with replaced(compiled, case, changed):
                yield bench.device, loaded.build(bench)

        HOST[f"host {case}: {name}"] = build
        return function

    return add


_SMALL = {"size_bytes": 2**20, "dtype": "float32"}


@bandwidth_mutation("triad", "the first half twice", **_SMALL)
def _triad_half(kernel: Any, a: Any, b: Any, c: Any, n: int, s: Any) -> None:
    kernel(a, b, c, n // 2, s)
    kernel(a, b, c, n // 2, s)


@bandwidth_mutation("triad", "c is b", **_SMALL)
def _triad_b(kernel: Any, a: Any, b: Any, c: Any, n: int, s: Any) -> None:
    del c
    kernel(a, b, b, n, s)


@bandwidth_mutation("copy", "the last page is missing", **_SMALL)
def _copy_page(kernel: Any, a: Any, b: Any, n: int) -> None:
    kernel(a, b, n - 1024)


@bandwidth_mutation("read", "half of the array twice", **_SMALL)
def _read_half(kernel: Any, b: Any, n: int, parts: Any) -> None:
    kernel(b, n // 2, parts)
    kernel(b, n // 2, parts)


@bandwidth_mutation("dot", "half of the array twice", **_SMALL)
def _dot_half(kernel: Any, b: Any, c: Any, n: int, parts: Any) -> None:
    kernel(b, c, n // 2, parts)
    parts *= 2


def walk_mutation(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function in place of the host's pointer chase; it gets the kernel, the ring, the steps and the state."""

    def add(function: Callable[..., object]) -> Any:
        @contextmanager
        def build(seed: int, is_twin: bool) -> Iterator[tuple[Any, Task]]:
            loaded, bench = host_bench("latency", "chase", seed, size_bytes=2**20)
            compiled = shared_modules("_host")[0].KERNELS
            kernel = compiled["chase"]
            with replaced(compiled, "chase", kernel if is_twin else lambda *args: function(kernel, *args)):
                yield bench.device, loaded.build(bench)

        HOST[f"host chase: {name}"] = build
        return function

    return add


@walk_mutation("half of the steps")
def _half_walk(kernel: Any, ring: Any, steps: int, state: Any) -> None:
    kernel(ring, steps // 2, state)


@walk_mutation("every walk starts at the same node")
def _same_walk(kernel: Any, ring: Any, steps: int, state: Any) -> None:
    kept = state.copy()
    kernel(ring, steps, state)
    state[:] = np.where(kept == kept, state, kept)
    state[0] = int(ring[int(kept[0])])


@walk_mutation("the chain is two chains of half the steps")
def _two_walks(kernel: Any, ring: Any, steps: int, state: Any) -> None:
    other = state.copy()
    kernel(ring, steps // 2, state)
    kernel(ring, steps // 2, other)


def passes_mutation(kind: str, name: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function in place of the host's passes over a working set."""

    def add(function: Callable[..., object]) -> Any:
        @contextmanager
        def build(seed: int, is_twin: bool) -> Iterator[tuple[Any, Task]]:
            module = suite_module("bandwidth", "_host")
            loaded, bench = host_bench("bandwidth", "working_set", seed, kernel=kind, size_bytes=2**20)
            kernel = getattr(module, f"_{kind}")
            with replaced(module, f"_{kind}", kernel if is_twin else lambda *args: function(kernel, *args)):
                yield bench.device, loaded.build(bench)

        HOST[f"host passes: {name}"] = build
        return function

    return add


@passes_mutation("read", "half of the passes")
def _half_passes(kernel: Any, rows: Any, passes: int, parts: Any) -> None:
    kernel(rows, passes // 2, parts)


@passes_mutation("write", "only the last pass")
def _last_pass(kernel: Any, rows: Any, passes: int, value: Any) -> None:
    kernel(rows, 1, value + np.uint64(passes - 1))


@passes_mutation("write", "every second pass")
def _second_passes(kernel: Any, rows: Any, passes: int, value: Any) -> None:
    kernel(rows, passes // 2, value + np.uint64(passes - passes // 2))


# The kernels that the simulated grid can run; the others need the GPU (`planted_faults_gpu.py`).
ON_GRID = {"stream.cu", "gemv.cu", "attention.cu"}
NOT_ON_GRID = {"read"}  # its kernel has the name of a function of the C library
