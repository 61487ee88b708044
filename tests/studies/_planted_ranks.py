"""Mutations of cases of two ranks, which are threads of this process: collectives, and signals through a pipe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from _modules import suite_module
from _thread_ranks import ThreadExchange

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.authoring.task import Task
from gpubench.model import Case, Facts

WORLD = 2
Build = Callable[[Bench, bool], Task]
RANKS: dict[str, Build] = {}


def measured(build: Build, seed: int, is_twin: bool, engine_for: Callable[..., Any]) -> Any:
    """Measure a task of two ranks in threads, and return what rank 0 measured; raise the first error of a rank."""
    backend = plugins.load("backends", "host")
    (host,) = backend.devices()
    meeting = ThreadExchange(WORLD)

    def rank(number: int) -> Any:
        def exchange(value: Any) -> list[Any]:
            return meeting.exchange(number, value)

        bench = Bench(
            backend.open(host),
            Case("collectives", "threads"),
            Target(Facts((host,)), host, "smoke"),
            plugins.load("suites", "collectives").package,
            seed,
            number,
            WORLD,
            (host,) * WORLD,
            (host,),
            exchange,
        )
        task = build(bench, is_twin)
        agree = lambda value: exchange(value)[0]  # noqa: E731
        try:
            part = engine_for(bench.device, seed, "smoke", agree=agree, rank=number).measure(task)
        except BaseException:
            meeting._barrier.abort()  # the other rank waits for no more values
            raise
        task.close()
        return part

    with ThreadPoolExecutor(WORLD) as pool:
        futures = [pool.submit(rank, number) for number in range(WORLD)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: type(error).__name__ == "BrokenBarrierError"):
            raise error
        return futures[0].result()


def _collective(change: Callable[[Any], None], name: str = "all_reduce") -> Build:
    """Return the task of a collective by shared memory; `change` mutates the part of rank 1."""

    def build(bench: Bench, is_twin: bool) -> Task:
        cases = suite_module("collectives", "_cases")
        made: list[Any] = []
        original = cases.HostRank

        class Rank(original):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                made.append(self)
                if bench.rank == 1 and not is_twin:
                    change(self)

        cases._PATIENCE_S = 2.0
        operation = cases.COLLECTIVES[name]
        rank = Rank(bench, operation, 2**14)
        stage = cases.gb.Stage(
            rank.call,
            cases.gb.Work(payload=2**14),
            "payload",
            lead=rank.meet,
            outputs=(rank.received,),
            inputs=rank.redraw,
        )
        return cases.gb.Task.of(stage, check=rank.check, close=rank.close)

    return build


def _sends_nothing(rank: Any) -> None:
    rank._memory.local[64:] = 0
    rank._fill = lambda array: None


def _sends_the_first_words_forever(rank: Any) -> None:
    rank._fill = lambda array: None


def _leaves_out_the_barriers(rank: Any) -> None:
    meet = rank.meet

    def call() -> None:
        rank._steps += 2
        rank._shared[rank._rank].array[:8].view(np.uint64)[0] = rank._steps  # nobody waits for this rank
        for segment in rank._operation.segments(rank._words, rank._world, rank._rank):
            part = rank.received[segment.offset : segment.offset + segment.count]
            np.copyto(part, rank._sent(segment.low, segment.first, segment.count))
            for other in range(segment.low + 1, segment.high):
                np.add(part, rank._sent(other, segment.first, segment.count), out=part)

    del meet
    rank.call = call


def _adds_its_own_words_alone(rank: Any) -> None:
    def call() -> None:
        rank.meet()
        rank.received[:] = 2 * rank._sent(rank._rank, 0, rank._words)
        rank.meet()

    rank.call = call


def _is_idle_from_a_call_on(rank: Any) -> None:
    work, calls = rank.call, [0]

    def call() -> None:
        calls[0] += 1
        if calls[0] < 5:
            work()
        else:
            rank.meet()
            rank.meet()

    rank.call = call


RANKS["all-reduce: a rank sends nothing"] = _collective(_sends_nothing)
RANKS["all-reduce: a rank sends its first words for ever"] = _collective(_sends_the_first_words_forever)
RANKS["all-reduce: a rank adds only its own words"] = _collective(_adds_its_own_words_alone)
RANKS["all-reduce: a rank waits for nobody"] = _collective(_leaves_out_the_barriers)
RANKS["all-reduce: a rank is idle from its fifth call on"] = _collective(_is_idle_from_a_call_on)


def _ping_pong(change: Callable[[Any, int], None]) -> Build:
    """Return the task of a ping-pong through a socket; `change` mutates the part of a rank."""

    def build(bench: Bench, is_twin: bool) -> Task:
        rounds = suite_module("ipc", "_signals").StreamPingPong(bench, "socket")
        if not is_twin:
            change(rounds, bench.rank)
        return rounds.task(2)

    return build


def _answers_early(rounds: Any, rank: int) -> None:
    def seconds() -> list[float]:
        taken = []
        for _ in rounds._answers:
            start = time.perf_counter()
            os.write(rounds._writing, b"?")
            os.read(rounds._reading, 1)
            taken.append(time.perf_counter() - start)
        return taken[1:]

    if rank == 1:
        rounds.seconds = seconds


def _answers_itself(rounds: Any, rank: int) -> None:
    del rank

    def seconds() -> list[float]:
        rounds._answers[:] = rounds._questions
        return [1e-7] * (len(rounds._answers) - 1)

    rounds.seconds = seconds


RANKS["ping-pong: the answer is sent before the question is read"] = _ping_pong(_answers_early)
RANKS["ping-pong: a rank answers its own questions"] = _ping_pong(_answers_itself)
