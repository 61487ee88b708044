"""Collectives: the data that each rank receives, the factors of bus bandwidth, a check that finds one wrong word."""

import ast
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import _make as make
import numpy as np
import pytest
from _modules import bench_on, opened, suite_module
from test_known_words import splitmix

from gpubench.base.errors import Skip, WrongAnswer
from gpubench.measuring import plan as planning
from gpubench.model import Settings

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
WORLDS = (2, 3, 4, 8)
ROOT, ROOMS = Path(__file__).parents[1], ("gpubench", "suites", "collectors", "reports", "ci")


part = partial(suite_module, "collectives")


def collective(name):
    return part("_operations").COLLECTIVES[name]


def received_by_segments(name, sent):
    world, words = len(sent), sent[0].size if name != "all_gather" else sent[0].size * len(sent)
    results = []
    for rank in range(world):
        received = np.full(collective(name).receives(words, world), np.nan)
        for segment in collective(name).segments(words, world, rank):
            parts = [
                sent[source][segment.first : segment.first + segment.count]
                for source in range(segment.low, segment.high)
            ]
            received[segment.offset : segment.offset + segment.count] = np.sum(parts, axis=0)
        results.append(received)
    return results


def received_by_definition(name, sent):
    """Return the same by the definition of the operation."""
    world = len(sent)
    stacked = np.array(sent)
    if name == "all_reduce":
        return [stacked.sum(axis=0)] * world
    if name == "all_gather":
        return [stacked.ravel()] * world
    if name == "reduce_scatter":
        return list(stacked.sum(axis=0).reshape(world, -1))
    if name == "broadcast":
        return [stacked[0]] * world
    if name == "all_to_all":
        return list(stacked.reshape(world, world, -1).transpose(1, 0, 2).reshape(world, -1))
    return [stacked[(rank - 1) % world] for rank in range(world)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", WORLDS)
def test_each_operation_gives_the_result_of_its_definition(name, world):
    rng = np.random.default_rng(world)
    sent = [rng.integers(0, 1000, 4 * world).astype(float) for _ in range(world)]
    for result, expected in zip(received_by_segments(name, sent), received_by_definition(name, sent), strict=True):
        assert (result == expected).all()


@pytest.mark.parametrize(("name", "factor"), [*zip(NAMES, (7 / 4, 7 / 8, 7 / 8, 1, 7 / 8, 1), strict=True)])
def test_bus_bandwidth_of_eight_ranks_has_the_factor_of_nccl_tests(name, factor):
    assert collective(name).factor(8) == pytest.approx(factor)
    assert collective(name).name == name


def test_the_words_are_whole_numbers_whose_sum_over_eight_ranks_is_exact():
    drawn = part("_cases").drawn(2**63 + 5, 10, 100)
    assert drawn.tolist() == [splitmix(2**63 + 5, i) >> 44 for i in range(10, 110)]
    assert drawn.max() < 2**20
    assert 8 * 2**20 <= 2**24, "a float of 32 bits counts so far without a gap"


def single_rank(name, size_bytes=64):
    """Return the only rank of a world of one on the host, so that no other is waited for."""
    suite = planning.load_suite("collectives")
    bench = bench_on(opened(), suite, name, 7, "smoke", by="memory", of=1, size_bytes=size_bytes)
    return part("_cases").HostRank(bench, collective(name), size_bytes)


@pytest.mark.parametrize("name", NAMES)
def test_one_wrong_word_fails_the_check(name):
    rank = single_rank(name)
    rank.received.fill(np.nan)
    with pytest.raises(WrongAnswer):
        rank.check()
    rank.call()
    rank.check()
    rank.received[3] += 1
    with pytest.raises(WrongAnswer, match="1 of 16 received words"):
        rank.check()
    rank.close()


def test_ranks_that_get_less_than_a_word_each_are_skipped():
    bench = type("B", (), {"world": 4})()
    with pytest.raises(Skip, match="8 B hold less than one word for each of 4 ranks"):
        part("_nccl").NcclRank(bench, collective("all_reduce"), 8)


def test_all_reachable_gpus_take_part_and_the_full_tier_adds_cases_of_fewer_gpus():
    eight = tuple(f"cuda:{n}" for n in range(8))
    facts = make.facts(*(make.device(name, peers=tuple(set(eight) - {name})) for name in eight))
    quick, full = (
        planning.make(facts, Settings(("collectives",), ("cuda:0",), tier, filters=("all_reduce",))).jobs
        for tier in ("quick", "full")
    )
    assert {(job.case.param("of"), job.case.ranks, len(job.devices)) for job in quick} == {(8, 8, 8)}
    assert {job.case.param("of") for job in full} == {2, 4, 8}


def test_nccl_keeps_its_own_settings_and_the_notes_have_the_users(monkeypatch):
    module = part("_nccl")
    binding = SimpleNamespace(available=True, get_version=lambda: 22809)
    monkeypatch.setattr(module, "importlib", SimpleNamespace(import_module=lambda name: binding))
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    rank = object.__new__(module.NcclRank)
    rank._nccl = module.library()
    assert "NCCL_NVLS_ENABLE" not in os.environ
    assert rank.notes == {"nccl": "2.28.9", "NCCL_NVLS_ENABLE": "not set"}
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    assert rank.notes["NCCL_NVLS_ENABLE"] == "1"


def test_the_product_writes_no_setting_of_nccl():
    """A setting is named only where it is read and in a note, in a file that does nothing else to the environment."""
    for path in (
        path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file() and path.suffix != ".pyc"
    ):
        if b"NCCL_" not in path.read_bytes():
            continue
        assert path.suffix == ".py", path
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        settings = [node for node in nodes if isinstance(node, ast.Constant) and "NCCL_" in str(node.value)]
        calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get"]
        keys = [key for node in nodes if isinstance(node, ast.Dict) for key in node.keys]
        assert {id(node) for node in settings} <= {id(node) for node in (*keys, *(call.args[0] for call in calls))}, (
            path
        )
        touched = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in ("environ", "putenv")]
        assert not settings or len(touched) == len(calls), path
