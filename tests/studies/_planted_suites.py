"""Mutations of the host code of the product's suites: a part of it is replaced; a twin is the same case unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from _modules import shared_modules, suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.model import Case, Facts


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


# Mutations of host code: each yields the suite's task in a context in which a part of it is replaced.

HOST: dict[str, Callable[[int], Any]] = {}


def on_host(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        HOST[name] = function
        return function

    return add


def product_mutation(name: str, dtype: str = "float32") -> Callable[[Callable[..., Any]], Any]:
    """Declare a call in place of c = a·b; the function gets a, b and c."""

    def add(function: Callable[[Any, Any, Any], object]) -> Any:
        @contextmanager
        def build(seed: int, is_twin: bool) -> Iterator[tuple[Any, Task]]:
            (formats,), host = shared_modules("_matrix.formats"), suite_module("gemm", "_host")
            _, bench = host_bench("gemm", "square", seed, dtype=dtype, n=192)
            changed = SimpleNamespace(**{**vars(np), "matmul": lambda a, b, out: function(a, b, out)})
            with replaced(host, "np", np if is_twin else changed):
                yield bench.device, host.host_product(bench, formats.PRECISIONS[dtype], formats.Shape(192, 160, 224))

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
    """Yield the device and the round trip of the suite compression on the host, with the trip changed."""
    module = suite_module("compression", "_roundtrip")
    params = {"corpus": "ids", "codec": codec, "size_bytes": 2**19, "chunk_bytes": 2**16}
    loaded, bench = host_bench("compression", "roundtrip", seed, **params)

    class Changed(module.HostRoundTrip):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if change is not None:
                change(self)

    with replaced(module, "HostRoundTrip", Changed):
        yield bench.device, loaded.build(bench)


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
    faster = suite_module("compression", "_codecs").ON_HOST["lz4"]()
    _put(trip, squeeze=faster.squeeze, restore=faster.restore)


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
    """Declare a function in place of the host's pointer chase; it gets the kernel first."""

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
