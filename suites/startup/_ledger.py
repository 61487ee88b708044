"""Measure the start of fresh interpreters: the seconds of each part, and whether the parts add up to the whole."""

import math
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from gpubench.api import suite as gb

from .._checks import measured_before
from .._files import IN_MEMORY, drop_from_page_cache, file_system, folder_for_files, make_file, read_into_page_cache
from ._child import PRELUDE, StartedProcess
from ._host_start import StartOrder

_ON_HOST = ("product", "weights")
_ON_GPU = ("cupy", "init", "context", "compile", "module", "kernel", "blas", "product", "graph", "weights")
_COLLECTIVE = ("cupy", "init", "context", "nccl", "communicator", "collective")
_CONTEXTS = ("cupy", "init", "context", "others")
_WHOLE = "whole"
_MOST_UNEXPLAINED = 0.05  # share of the whole that no part accounts for
_LIMIT_S = 60.0  # time limit of one interpreter
_SAMPLES = 3  # samples in the full tier
_ATTEMPTS = 3  # attempts per sample
_LAZY, _EAGER, _DEFAULT = "lazy", "eager", "default"
_COLD, _WARM = "cold", "warm"
_LIBRARIES = "their files were left in or out of the system's page cache, as they were found"

topic = gb.Topic(
    views=[
        gb.View(
            "bars", "Time to the first result of a process", ("ledger",), by=("loading", "files"), series="whole.self"
        ),
        gb.View("curve", "Time to contexts on several GPUs", ("contexts",), "of", series="whole.self"),
        gb.View("bars", "Time to load weights from disk", ("ledger",), by=("loading", "files"), series="weights.self"),
    ],
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The seconds of each part by name, the seconds of the whole start, and the peak of resident memory in bytes."""

    parts: Mapping[str, float]
    seconds: float
    resident_bytes: int


def _usual_loading(target: gb.Target) -> tuple[str]:
    """Return how kernels of libraries are loaded unless a user chooses otherwise, as a tuple of one axis value."""
    return (_LAZY if target.device.architecture.vendor == "nvidia" else _DEFAULT,)


def _loadings(target: gb.Target) -> Any:
    """Return the axis of ways in which kernels of libraries are loaded: on NVIDIA `lazy` and in `full` `eager`."""
    usual = _usual_loading(target)
    return usual if usual == (_DEFAULT,) else gb.points(usual, full=(*usual, _EAGER))


def _files(target: gb.Target) -> Any:
    return gb.points((_COLD,) if gb.on_gpu(target) else (_COLD, _WARM), (_COLD,), (_COLD, _WARM))


def _is_measured(_: gb.Target, params: Mapping[str, Any]) -> bool:
    """Return whether a point is measured: all but `eager` with a warm file."""
    return bool(params["loading"] != _EAGER or params["files"] == _COLD)


@topic.case(
    headline={"files": _COLD},
    where=_is_measured,
    loading=_loadings,
    files=_files,
    size_bytes=gb.points((2**25,), (2**22,), (2**28,)),
)
def ledger(bench: gb.Bench, loading: str, files: str, size_bytes: int) -> gb.Task:
    """Seconds from the start of a fresh interpreter until a product is computed and a file of weights is in memory.

    Each part of the start is a series. The pages of the file, of `size_bytes`, are dropped from the system's page cache
    before the start (`files` is `cold`), or read into it (`warm`). `loading` is when CUDA loads the kernels of
    libraries. Skipped if the cold file would lie in memory."""
    where = folder_for_files()
    kind = file_system(where)
    if files == _COLD and kind in IN_MEMORY:
        raise gb.Skip(f"{where} is on {kind}, in memory, so no file is cold; set TMPDIR to a folder on a disk")
    bench.need(3 * size_bytes)
    weights = bench.rng.bytes(size_bytes)
    file = make_file(np.frombuffer(weights, np.uint8), where)
    try:
        path = f"/proc/{os.getpid()}/fd/{file}"
        order = _order(bench, _ON_GPU if bench.traits.is_gpu else _ON_HOST, path, size_bytes, zlib.crc32(weights))
        answers = _answers(
            bench,
            order,
            partial(drop_from_page_cache if files == _COLD else read_into_page_cache, file, size_bytes),
            loading,
        )
    finally:
        os.close(file)
    notes = {"weights": f"a file on {kind or 'an unknown file system'}, {files}", "libraries": _LIBRARIES}
    return task_of(answers, notes)


def _is_in_full(target: gb.Target) -> bool:
    return gb.on_gpu(target) and target.tier == "full"


@topic.case(when=_is_in_full, loading=_usual_loading)
def collective(bench: gb.Bench, loading: str) -> gb.Task:
    """Seconds from the start of a fresh interpreter until the first all-reduce of one GPU with itself has ended."""
    answers = _answers(bench, _order(bench, _COLLECTIVE), lambda: None, loading)
    return task_of(answers, {"libraries": _LIBRARIES})


def _gpu_counts(target: gb.Target) -> tuple[int, ...]:
    """Return the axis `of`, the number of GPUs that a process sees: 1, 2, 4, 8 and 16 as far as they exist, and all."""
    count = sum(device.backend == target.device.backend for device in target.facts.devices)
    return tuple(dict.fromkeys(number for number in (1, 2, 4, 8, 16, count) if number <= count))


@topic.case(when=lambda target: _is_in_full(target) and target.device.architecture.vendor == "nvidia", of=_gpu_counts)
def contexts(bench: gb.Bench, of: int) -> gb.Task:
    """Seconds until a fresh interpreter that sees `of` GPUs has created a context on each of them.

    CUDA_VISIBLE_DEVICES hides the other GPUs of the machine."""
    own = bench.target.device
    others = [device for device in bench.target.facts.devices if device.backend == own.backend and device != own]
    seen = (own, *others[: of - 1])
    order = replace(_order(bench, _CONTEXTS), others=tuple(device.pci for device in seen[1:]))
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in seen)}
    answers = _answers(bench, order, lambda: None, *_usual_loading(bench.target), environment)
    return task_of(answers, {"libraries": _LIBRARIES, "GPUs": ", ".join(device.id for device in seen)})


def _order(bench: gb.Bench, steps: Sequence[str], path: str = "", size_bytes: int = 0, crc: int = 0) -> StartOrder:
    """Return the order to take `steps` on the device of the bench, with a drawn seed."""
    seed = int(bench.rng.integers(2**32))
    return StartOrder(tuple(steps), bench.device.device.pci, bench.traits.arch, seed, path, size_bytes, crc)


def _answers(
    bench: gb.Bench,
    order: StartOrder,
    prepare: Callable[[], None],
    loading: str,
    further: Mapping[str, str] = MappingProxyType({}),
) -> list[Answer]:
    """Start interpreters that take the steps of `order`, one after another, each after a call of `prepare`."""
    environment = dict(further) if loading == _DEFAULT else {"CUDA_MODULE_LOADING": loading.upper(), **further}
    samples = _SAMPLES if bench.target.tier == "full" else 1
    return [_explained(partial(_answer, bench, order, environment), prepare) for _ in range(samples)]


def _answer(bench: gb.Bench, order: StartOrder, environment: Mapping[str, str]) -> Answer:
    """Start an interpreter that takes the steps of `order`, and return what it and this process have measured."""
    with bench.helper(StartedProcess, "the started process", environment=environment, prelude=PRELUDE) as helper:
        helper.ask(_LIMIT_S, "start", order)
        seconds = time.monotonic() - helper.started_s
        parts = helper.ask(_LIMIT_S, "checked", helper.started_s)
        return Answer(parts, seconds, helper.resident_bytes())


def _explained(started: Callable[[], Answer], prepare: Callable[[], None]) -> Answer:
    """Call `prepare` and `started` up to three times; return the first answer whose parts add up to the whole."""
    for _ in range(_ATTEMPTS):
        prepare()
        answer = started()
        if abs(unexplained(answer)) <= _MOST_UNEXPLAINED:
            break
    return answer


def task_of(answers: Sequence[Answer], notes: Mapping[str, str]) -> gb.Task:
    """Return the task with the whole start (`whole`) and each of its parts as a stage; each answer is one sample."""
    shares = [unexplained(answer) for answer in answers]
    worst = max(shares, key=abs)
    if not all(abs(share) <= _MOST_UNEXPLAINED for share in shares):  # also rejects NaN
        difference = f"the parts account for all but {worst:.1%} of the whole, which the starting process measured"
        raise gb.Untrustworthy("ledger", f"{difference}: a part is missing, or the machine is busy")
    stages = {_WHOLE: measured_before([answer.seconds for answer in answers])}
    stages |= {name: measured_before([answer.parts[name] for answer in answers]) for name in answers[0].parts}
    return gb.Task(stages, partial(_observed, answers, worst), notes=notes)


def unexplained(answer: Answer) -> float:
    """Return the share of the whole that no part accounts for, from 0 to 1; it is negative if the parts take longer."""
    return 1 - math.fsum(answer.parts.values()) / answer.seconds


def _observed(answers: Sequence[Answer], share: float) -> gb.Observation:
    return {
        "unexplained": gb.Observed(100 * abs(share), "%"),
        "resident": gb.Observed(max(answer.resident_bytes for answer in answers), "B"),
    }
