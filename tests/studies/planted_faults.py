"""Plant faults in tasks, kernels and suites, and count in how many runs the engine sees each.

A list of mutations that was written without a look at `mutations.py`. Each has 20 runs with other seeds, and its
healthy twin 20, which must all pass::

    bash ci/study.sh planted_faults [--runs 20] [--only WORDS] [--where clockwork|host|grid|suites|recording|ranks]
                                [--part K/N]
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import _planted
import _planted_kernels
import _planted_ranks
import _planted_suites
import numpy as np
from _grid_device import PaperBench, PaperGpu

from gpubench import plugins, stats
from gpubench.analysis.key_figures import key_values
from gpubench.analysis.summary import Summary
from gpubench.authoring import checks
from gpubench.base.errors import SuiteError, Untrustworthy, WrongAnswer
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import store
from gpubench.plugins.backend import Traits

ENOUGH = 0.95  # a mutation counts as seen if it is in this share of its runs, 19 of 20
H200 = Path(__file__).parents[1] / "recordings/whole/h200.jsonl.gz"
PASSED = "passed"
TRAITS = Traits("nvidia", "sm_90", "cuda", ("hot",), "perf_counter", warp=32, is_gpu=True)
ON_GRID = {"stream.cu", "gemv.cu", "attention.cu", "access.cu"}  # the kernels that the simulated grid can run
GRAPHS = {name for name in _planted.MUTATIONS if name.startswith("a graph")}  # which the host does not have

UNSEEN = {  # what the engine cannot see, with the reasons
    "equal pages are computed once": "The answer is right, and the engine does not know what a call reads.",
    "a call that times itself reports half": "The other half may be a preparation.",
    "half of the passes become one": "Twice the passes take 1.8 times as long, which is allowed.",
    "neither outputs nor inputs are declared": "An earlier answer is a right one, and no array is poisoned.",
    "dot: sums in single precision": "It changes one rounding of a sum whose 16 terms are summed in single precision.",
    # on a GPU
    "the answer is overwritten beside by an old one": "The work ends later: answer and time are right.",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A mutation at one place: `run(seed, is_twin)` returns by which cause it was seen, or PASSED."""

    name: str
    kind: str
    where: str
    run: Callable[[int, bool], str]


def outcome(measure: Callable[[], Any]) -> tuple[str, float]:
    """Return the cause by which the engine sees a fault, or PASSED, and the median of the headline in seconds."""
    try:
        measured = measure()
    except WrongAnswer:
        return "wrong-answer", 0.0
    except Untrustworthy as finding:
        return finding.cause, 0.0
    except SuiteError:
        return "suite", 0.0
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return type(error).__name__, 0.0
    return "unchecked" if "unchecked" in measured.labels else PASSED, stats.median(measured.series[0].values)


def engine_for(device: Any, seed: int, tier: Any = "quick", **options: Any) -> Engine:
    return Engine(device, POLICIES[tier], rng=np.random.default_rng([seed, 1]), **options)


def open_device(name: str) -> Any:
    backend = plugins.load("backends", name)
    device = backend.open(backend.devices()[0])
    if name == "clockwork":  # on every other device a wait takes time
        wait, flush = device.synchronize, device.flush
        device.synchronize = lambda: (wait(), device.spend(1e-5))[0]
        device.flush = lambda: (flush(), device.spend(1e-4))[0]
        device.device = dataclasses.replace(device.device, cache_bytes=2**15)
    return device


def machine_run(name: str, backend: str, seed: int, is_twin: bool = False) -> tuple[str, float]:
    """Measure a `Case` on a machine, changed by the mutation of that name, or its healthy twin."""
    device, rng = open_device(backend), np.random.default_rng(seed)
    machine = _planted.NumpyMachine(device, rng, 2**12 if backend == "clockwork" else 2**16)
    with _planted.planted(name, _planted.Case(machine, rng), is_twin=is_twin) as case:
        return outcome(lambda: engine_for(device, seed).measure(case.task()))


def machine_entries() -> Iterator[Entry]:
    def run(name: str, backend: str, seed: int, is_twin: bool) -> str:
        seen, median_s = machine_run(name, backend, seed, is_twin)
        if seen == PASSED and name in _planted.HARMLESS:
            honest_s = machine_run(name, backend, seed, True)[1]
            return "true figure" if abs(median_s / honest_s - 1) < 0.25 else PASSED
        return seen

    for name, (kind, _) in _planted.MUTATIONS.items():
        for backend in ("clockwork", "host"):
            if name in GRAPHS and backend == "host":
                continue
            yield Entry(name, kind, backend, lambda s, t, n=name, b=backend: run(n, b, s, t))


def suite_entries() -> Iterator[Entry]:
    def run_host(build: Any, seed: int, is_twin: bool) -> str:
        with build(seed, is_twin) as (device, task):
            return outcome(lambda: engine_for(device, seed).measure(task))[0]

    def run_kernel(fault: Any, seed: int, is_twin: bool) -> str:
        gpu = PaperGpu(TRAITS)
        task = _planted_kernels.task_of(PaperBench, gpu, fault, seed, is_twin)
        return outcome(lambda: engine_for(gpu, seed, "smoke").measure(task))[0]

    for name, build in _planted_suites.HOST.items():
        yield Entry(name, "suite", "suites", lambda s, t, b=build: run_host(b, s, t))
    for name, fault in _planted_kernels.faults().items():
        if fault.file in ON_GRID and fault.case != "read":  # that kernel has the name of a function of the C library
            yield Entry(name, "kernel", "grid", lambda s, t, f=fault: run_kernel(f, s, t))


def rank_entries() -> Iterator[Entry]:
    """Yield mutations of cases of two ranks, which are threads."""

    def run(build: Any, seed: int, is_twin: bool) -> str:
        def measure() -> Any:
            return _planted_ranks.measured(build, seed, is_twin, engine_for)

        return outcome(measure)[0]

    for name, build in _planted_ranks.RANKS.items():
        yield Entry(name, "ranks", "ranks", lambda s, t, b=build: run(b, s, t))


def declared_entries() -> Iterator[Entry]:
    """Yield mutations of the declared work of headline cases that an H200 measured; its recording is judged again."""
    recorded = store.read_run(H200)
    summary = Summary(recorded)
    keys = {value.case_id for value in key_values(summary)}
    headlines = [one for one in recorded.results if one.case.id in keys and one.status == "ok" and one.series[0].limit]

    def run(factor: float, seed: int, is_twin: bool) -> str:
        result = headlines[int(np.random.default_rng(seed).integers(len(headlines)))]
        first = result.series[0]
        scale = 1.0 if is_twin else factor
        work = dataclasses.replace(
            first.work,
            moved=first.work.moved * scale,
            payload=first.work.payload * scale,
            flops=first.work.flops * scale,
        )
        try:
            checks.work("Stage.work", work, first.quantity)
        except SuiteError:
            return "suite"
        changed = dataclasses.replace(result, series=(dataclasses.replace(first, work=work), *result.series[1:]))
        run = dataclasses.replace(
            recorded, results=tuple(changed if one is result else one for one in recorded.results)
        )
        (row,) = [row for row in Summary(run).rows() if row.result.case == result.case][:1]
        return "above-peak" if "above-peak" in row.labels else PASSED

    for name, factor in (
        ("bytes or operations are declared twice", 2.0),
        ("bits are declared as bytes", 8.0),
        ("a unit of 1000 is taken for 1024", 1.024),
    ):
        yield Entry(name, "declared", "recording", lambda s, t, f=factor: run(f, s, t))


def entries() -> Iterator[Entry]:
    yield from machine_entries()
    yield from suite_entries()
    yield from rank_entries()
    yield from declared_entries()


def counted(entry: Entry, runs: int, is_twin: bool) -> Counter[str]:
    return Counter(entry.run(seed, is_twin) for seed in range(runs))


def rows(chosen: Iterable[Entry], runs: int) -> Iterator[tuple[Entry, Counter[str], Counter[str], float]]:
    """Yield each mutation with the causes of its runs, those of its twin, and the seconds that all took."""
    twins: dict[str, Counter[str]] = {}
    for entry in chosen:
        start = time.perf_counter()
        causes = counted(entry, runs, False)
        has_own = entry.kind in ("suite", "kernel", "ranks") or entry.name in _planted.TWINS
        shared = entry.where + entry.name if has_own else entry.where
        if shared not in twins:
            twins[shared] = counted(entry, runs, True)
        yield entry, causes, twins[shared], time.perf_counter() - start


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--where", default="")
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N parts, for several processors")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = [entry for entry in entries() if chosen.only in entry.name and chosen.where in ("", entry.where)]
    place, parts = map(int, chosen.part.split("/"))
    wanted = wanted[place - 1 :: parts]
    say(f"{'mutation':<62}{'kind':<10}{'where':<10}{'seen':>6}  causes; twin")
    shares: dict[str, list[float]] = {}
    for entry, causes, twin, seconds in rows(wanted, chosen.runs):
        seen = chosen.runs - causes[PASSED]
        shares.setdefault(entry.name, []).append(seen / chosen.runs)
        by = ", ".join(f"{cause} {count}" for cause, count in causes.most_common() if cause != PASSED)
        healthy = "" if twin[PASSED] == chosen.runs else f"; TWIN {dict(twin)}"
        say(
            f"{entry.name:<62}{entry.kind:<10}{entry.where:<10}{seen:>3}/{chosen.runs}  {by}{healthy} ({seconds:.1f} s)"
        )
    always = sum(min(values) >= ENOUGH for values in shares.values())
    never = [name for name, values in shares.items() if max(values) == 0]
    say(
        f"{len(shares)} mutations; {always} ({always / max(len(shares), 1):.0%}) seen in 19 of 20 runs everywhere, "
        f"{len(never)} never:"
    )
    say("\n".join(f"  {name}: {UNSEEN.get(name, 'no reason is known')}" for name in never))


if __name__ == "__main__":
    main()
