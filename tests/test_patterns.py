"""Patterns between processes: overlap, schedules of topologies, batches; all without a device."""

import dataclasses
import itertools
import threading
import types
from functools import partial

import _grid
import mutations
import numpy as np
import pytest
from _modules import suite_module
from _poison import overwrite

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring.plan import load_suite
from gpubench.model import Case, Facts

SUITE = load_suite("patterns")
RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33)


part = partial(suite_module, "patterns")


def times(compute, transfer, together):
    return part("_pipeline").OverlapTimes(compute, transfer, together, compute, transfer)


@pytest.mark.parametrize(
    ("together", "efficiency"), [(2.0, 1.0), (2.5, 0.5), (3.0, 0.0), (3.5, 0.0), (1.9, 1.0), (2.25, 0.75)]
)
def test_overlap_efficiency_is_the_hidden_share_of_the_shorter_part_and_stays_between_0_and_1(together, efficiency):
    assert times(2.0, 1.0, together).efficiency == pytest.approx(efficiency)
    assert times(1.0, 2.0, together).efficiency == pytest.approx(efficiency)
    overlap = part("_pipeline").OverlapTimes(2.0, 1.0, 2.5, 2.2, 1.5)
    assert (overlap.compute_slowdown, overlap.transfer_slowdown) == pytest.approx((1.1, 1.5))


@pytest.mark.parametrize(("compute", "transfer"), [(1.0, 1.0), (3.0, 1.0), (1.0, 3.0)])
@pytest.mark.parametrize("depth", [1, 2, 8])
def test_a_pipeline_of_ideal_parts_reaches_the_bound_from_depth_two_on(compute, transfer, depth):
    chunks, arrived, done = 32, [0.0], [0.0] * depth
    for _ in range(chunks):
        arrived.append(max(arrived[-1], done[-depth]) + transfer / chunks)
        done.append(max(done[-1], arrived[-1]) + compute / chunks)
    expected = part("_pipeline").bound(chunks) if depth > 1 else 0.0
    assert times(compute, transfer, done[-1]).efficiency == pytest.approx(expected)


def rounds_after(seconds_of, wanted_s, trials=8):
    """Return the rounds of a computation after its calibration, if each number of rounds takes `seconds_of` it."""
    overlap, tried, rounds = part("_pipeline"), [], 1
    for _ in range(trials):
        tried.append((rounds, seconds_of(rounds)))
        rounds = overlap.next_rounds(tried, wanted_s)
    return rounds


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("hidden_s", [0.05, 0.25, 0.4])
def test_a_computation_whose_first_rounds_cost_nothing_is_calibrated_too(hidden_s, share):
    """The first rounds are hidden behind loads, then each takes 9.4 µs, as on a GPU; three steps alone reach 0.43."""

    def seconds_of(rounds):
        return hidden_s + 9.4e-3 * max(0, rounds - 3)

    assert seconds_of(rounds_after(seconds_of, share * 1.38)) == pytest.approx(share * 1.38, rel=0.03)


def chunks(count=3, words=2048):
    return np.random.default_rng(5).integers(2**32, size=(count, words), dtype=np.uint32)


def test_the_kernel_the_host_and_the_closed_form_have_the_same_digests():
    words, rounds, digest = chunks(), 9, part("_pipeline")
    expected = digest.expected_digests(words, rounds)
    compiled = part("_host_digest")
    numbers = (np.uint32(digest.FACTOR), np.uint32(digest.TERM))
    assert [compiled.digest(chunk, *numbers, rounds) for chunk in words] == expected.tolist()
    kernel, blocks = _grid.kernel("patterns/pipeline.cu", "digest"), np.zeros((3, 4 * 64), np.uint32)
    for chunk, digests in zip(words, blocks, strict=True):
        kernel((4,), (64,), (chunk, np.uint32(chunk.size), *numbers, np.uint32(rounds), digests))
    assert np.bitwise_xor.reduce(blocks, axis=1).tolist() == expected.tolist()


@pytest.mark.parametrize("damage", ["a word", "the order", "a stale chunk"])
def test_a_wrong_or_stale_chunk_has_another_digest(damage):
    words, expected_digests = chunks(), part("_pipeline").expected_digests
    wrong = words.copy()
    if damage == "a word":
        wrong[1, 77] ^= 1
    elif damage == "the order":
        wrong[1, [3, 4]] = wrong[1, [4, 3]]
    else:
        wrong[1] = wrong[0]
    assert (expected_digests(words, 4) != expected_digests(wrong, 4)).tolist() == [False, True, False]


def test_a_pipeline_whose_slots_are_overwritten_too_early_fails_its_check():
    message = built("pipeline", path="memory", by="memcpy", chunk_bytes=2**14, compute="equal", depth=2)
    overwrite(message)
    message.stages[""].call()
    message.check()
    line = message.check.__self__._pipeline
    copy_all = line._compiled.copy_all
    line._compiled = types.SimpleNamespace(
        copy_all=lambda words, slots, depth, *more: copy_all(words, slots[:1], 1, *more),
        digest_all=line._compiled.digest_all,
    )
    overwrite(message)
    message.stages[""].call()
    with pytest.raises(WrongAnswer, match="digests of chunks are wrong"):
        message.check()
    message.close()


def built(name, rank=0, world=1, exchange=None, seed=7, **params):
    backend = plugins.load("backends", "host")
    device = backend.devices()[0]
    case = Case("patterns", name, tuple(params.items()))
    extra = {"exchange": exchange} if exchange else {}
    target = Target(Facts((device,)), device, "smoke")
    bench = Bench(backend.open(device), case, target, SUITE.package, seed, rank, world, devices=(device,), **extra)
    return SUITE.build(bench)


def faults_of(schedule, ranks, wanted):
    """Return the mistakes of a schedule: blocks sent before they are there, received twice, or never received."""
    held = {rank: {rank} for rank in range(ranks)}
    mistakes = []
    for _, step in itertools.groupby(schedule, key=lambda delivery: delivery.step):
        deliveries = list(step)
        mistakes += [delivery for delivery in deliveries if delivery.block not in held[delivery.source]]
        for arrival in deliveries:
            mistakes += [arrival] if arrival.block in held[arrival.target] else []
            held[arrival.target].add(arrival.block)
    return mistakes + [rank for rank in range(ranks) if held[rank] != wanted(rank)]


def ends_in_any_order(schedule, ranks, rng):
    """Return whether all ranks finish if they run in a random order, each waiting for the deliveries of its step."""
    plans = [part("_topology").of_rank(schedule, rank) for rank in range(ranks)]
    posted, waiting = [0] * ranks, [False] * ranks
    for _ in range(20 * ranks * (1 + len(plans[0]))):
        rank = int(rng.integers(ranks))
        if posted[rank] == len(plans[rank]) and not waiting[rank]:
            continue
        if not waiting[rank]:
            posted[rank] += 1
        sources = plans[rank][posted[rank] - 1][1]
        waiting[rank] = any(posted[source] < posted[rank] for source in sources)
    return all(count == len(plan) for count, plan in zip(posted, plans, strict=True)) and not any(waiting)


@pytest.mark.parametrize("topology", ["ring", "star", "mesh", "tree"])
@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_receives_every_other_block_exactly_once_and_no_schedule_deadlocks(topology, ranks):
    schedule = part("_topology").TOPOLOGIES[topology](ranks)
    assert faults_of(schedule, ranks, lambda rank: set(range(ranks))) == []
    assert len(schedule) == ranks * (ranks - 1)
    assert ends_in_any_order(schedule, ranks, np.random.default_rng(ranks))
    steps = part("_topology").of_rank(schedule, ranks - 1)
    if topology in ("ring", "mesh"):
        assert {(len(sends), len(sources)) for sends, sources in steps} <= {(1, 1)}
    elif topology == "tree":
        assert len(steps) == 2 * (ranks - 1).bit_length(), "two for each doubling of the ranks"
    schedule = part("_topology").incast(ranks)
    assert faults_of(schedule, ranks, lambda rank: {rank} if rank else set(range(ranks))) == []


def test_a_wrong_schedule_is_found():
    good = part("_topology").ring(4)
    early = (*good[:4], dataclasses.replace(good[4], block=2), *good[5:])
    everything = set(range(4))
    assert faults_of(good[:-1], 4, lambda rank: everything)
    assert faults_of((*good, good[-1]), 4, lambda rank: everything)
    assert faults_of(early, 4, lambda rank: everything)


def together(name, world, **params):
    """Return the tasks of all ranks, as threads of this process, and a function that calls all of them at once."""
    ranks = mutations.ThreadRanks(world)
    tasks, errors = [None] * world, [None] * world

    def on_all(action):
        def act(rank):
            try:
                errors[rank] = None
                tasks[rank] = action(rank) or tasks[rank]
            except (WrongAnswer, threading.BrokenBarrierError) as error:
                errors[rank] = error
                ranks.leave()

        threads = [threading.Thread(target=act, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [error for error in errors if isinstance(error, WrongAnswer)]

    def exchange(rank):
        return lambda value: ranks.exchange(rank, value)

    assert on_all(lambda rank: built(name, rank, world, exchange(rank), **params)) == []
    return tasks, on_all


@pytest.mark.parametrize("topology", ["ring", "star", "mesh", "tree"])
def test_a_rank_that_answers_wrongly_fails_the_check_of_those_that_received_it(topology):
    tasks, on_all = together("topology", 3, by="memory", topology=topology, of=3, size_bytes=2**12)
    assert on_all(lambda rank: overwrite(tasks[rank])) == []
    assert on_all(lambda rank: tasks[rank].stages[""].call() and None) == []
    assert on_all(lambda rank: tasks[rank].check()) == []
    liar = tasks[1].stages[""].call.__self__
    liar.own[9] ^= 1
    assert on_all(lambda rank: overwrite(tasks[rank])) == []
    assert on_all(lambda rank: tasks[rank].stages[""].call() and None) == []
    answers = on_all(lambda rank: tasks[rank].check())
    assert answers
    assert "1 of 512 words of 4KiB of rank 1, received by rank" in str(answers[0])
    on_all(lambda rank: tasks[rank].close())


def test_a_message_that_arrives_wrongly_fails_the_check_of_a_batch():
    tasks, on_all = together("batch", 2, path="socket", messages=8)
    assert on_all(lambda rank: overwrite(tasks[rank])) == []
    assert on_all(lambda rank: tasks[rank].stages[""].call() and None) == []
    assert on_all(lambda rank: tasks[rank].check()) == []
    receiver = tasks[1].check.__self__
    receiver._received[100] ^= 1
    with pytest.raises(WrongAnswer, match="1 of 8 messages differ"):
        receiver.check()
    on_all(lambda rank: tasks[rank].close())


RECEIVED = {
    "topology": lambda task: task.check.__self__._memory.local,
    "batch": lambda task: task.check.__self__._received,
}


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("topology", {"by": "memory", "topology": "ring", "of": 2, "size_bytes": 2**12}),
        ("batch", {"path": "socket", "messages": 8}),
    ],
)
def test_blocks_and_messages_of_an_earlier_call_are_found_because_the_next_ones_differ(name, params):
    tasks, on_all = together(name, 2, **params)
    received = RECEIVED[name](tasks[1])

    def called(with_other_input):
        if with_other_input:
            on_all(lambda rank: tasks[rank].stages[""].inputs())
        assert on_all(lambda rank: overwrite(tasks[rank])) == []
        assert on_all(lambda rank: tasks[rank].stages[""].call() and None) == []

    for with_other_input in (False, True):
        called(with_other_input)
        assert on_all(lambda rank: tasks[rank].check()) == []
    earlier = received.copy()
    called(with_other_input=True)
    received[:] = earlier
    assert on_all(lambda rank: tasks[rank].check())
    on_all(lambda rank: tasks[rank].close())
