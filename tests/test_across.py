"""Collectives and messages between nodes, and pairs of nodes: real runs on 127.0.0.1, verdicts from prepared files."""

import dataclasses
import gzip
import json
from functools import partial

import _command as command
import _files as files
import _fleet
import _make as make
import numpy as np
import pytest
from _command import end_processes, node_variables
from _earlier import expect_found
from _modules import opened, suite_module

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.base.errors import WrongAnswer
from gpubench.judging import links
from gpubench.judging.fleet import fleet_status
from gpubench.judging.fleet_text import fleet_answer
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.model import Case, Facts, Settings, Work, store
from gpubench.tools.fleet import pairs
from gpubench.tools.fleet.board import NodeOrder
from gpubench.tools.fleet.pairs import PairMeasurement, PairsRecord, PairsSession
from gpubench.tools.fleet.session import FleetRequest

part = partial(suite_module, "collectives")


def start(environment, *arguments):
    """Start gpubench without a GPU; `environment` is added to this process's."""
    return command.start(*arguments, CUDA_VISIBLE_DEVICES="", **environment)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_nodes_measure_collectives_and_messages_together_by_tcp(tmp_path, size):
    argv = ("run", "collectives", "--device", "host", "--tier", "smoke", "--filter", "across", "--filter", "message")
    nodes = [
        start(node_variables(rank, size, 20_500 + size), *argv, "--out", str(tmp_path / f"{rank}.jsonl"))
        for rank in range(size)
    ]
    assert end_processes(*nodes) == [0] * size
    for rank in range(size):
        run = store.read_run(tmp_path / f"{rank}.jsonl")
        assert run.manifest.settings.nodes == size
        names = [result.case.name for result in run.results]
        assert names == ["across", "across", *(["message"] if size == 2 else [])]
        for result in run.results:
            assert result.status == "ok", result.reason
            assert {series.rank for series in result.series} == {rank}
        assert "setup" in {series.label for series in run.results[0].series}


@pytest.mark.slow
def test_two_processes_measure_as_a_pair_and_are_too_few_for_a_verdict(tmp_path):
    folder = tmp_path / "pairs"
    nodes = [
        start(
            {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"},
            *("fleet", "pairs", "--from-env", "--rounds", "1", "--tier", "smoke", "-o", str(folder)),
        )
        for rank in (0, 1)
    ]
    assert end_processes(*nodes) == [4, 0]
    record = json.loads((folder / "pairs.json").read_text())
    assert [(meeting["first"], meeting["second"], meeting["reason"]) for meeting in record["meetings"]] == [(0, 1, "")]
    assert len(list((folder / "pairs" / "1").glob("*.jsonl.gz"))) == 2


def target(nodes, *devices):
    return Target(make.facts(*devices), devices[0], "quick", nodes=nodes)


def spread(reports):
    return [case for case in reports if case.name in ("across", "message")]


def test_nodes_of_several_gpus_measure_with_one_of_each_and_with_all():
    gpus = tuple(f"cuda:{number}" for number in range(4))
    devices = [make.device(name, peers=tuple(set(gpus) - {name}), memory_bytes=2**37) for name in gpus]
    cases = spread(planning.load_suite("collectives").cases(target(3, *devices)))
    assert {(case.param("nodes"), case.ranks, case.devices) for case in cases} == {(3, 3, 1), (3, 12, 4)}
    assert {case.param("size_bytes") for case in cases} == {8, 2**20, 2**28}
    assert {case.name for case in cases} == {"across"}, "messages are between two nodes"
    for device in (make.device(), *plugins.load("backends", "host").devices()):
        assert spread(planning.load_suite("collectives").cases(target(1, device))) == [], "on one node"
    devices = tuple(make.device(name, peers=tuple(set(gpus[:2]) - {name}), memory_bytes=2**37) for name in gpus[:2])
    settings = Settings(("collectives",), ("cuda:1",), filters=pairs.FILTERS, nodes=2)
    jobs = planning.make(Facts(devices), settings).jobs
    assert {(job.case.name, job.case.ranks, len(job.devices)) for job in jobs} == {("across", 2, 1)}
    assert len(jobs) == 6, "the filter of pairs selects one GPU of each"


def test_a_job_between_nodes_is_described_without_the_ids_of_its_devices():
    plans = []
    for name in ("cuda:0", "cuda:1"):
        facts = Facts((make.device(name, memory_bytes=2**37),))
        settings = Settings(("collectives",), (name,), filters=("across", "message"), nodes=2)
        plans.append(planning.make(facts, settings))
    first, second = (planning.described(plan.jobs, plan.settings) for plan in plans)
    assert first == second
    assert planning.described(plans[0].jobs[:-1], plans[0].settings) != first
    assert {job.nodes for job in plans[0].jobs} == {2}


@pytest.mark.parametrize("world", [2, 3, 16, 100])
def test_sums_of_tiles_are_exact_and_one_wrong_word_or_a_tile_at_a_wrong_place_is_found(world):
    tiles = part("_across").SummableWords(7, world)
    parts = [np.empty(3 * 2**16 + 5, np.float32) for _ in range(min(world, 16))]
    for rank, array in enumerate(parts):
        tiles.write(array, rank)
    total = np.sum(parts, axis=0, dtype=np.float64)
    assert (np.sum(parts, axis=0, dtype=np.float32) == total).all()
    result = total.astype(np.float32)
    assert tiles.mistakes(result, 0, 0, len(parts)) == 0
    result[70_000] += 1
    assert tiles.mistakes(result, 0, 0, len(parts)) == 1
    swapped = parts[0].copy()
    swapped[: 2**16], swapped[2**16 : 2**17] = parts[0][2**16 : 2**17], parts[0][: 2**16]
    assert tiles.mistakes(swapped, 0, 0, 1) == 2**17
    assert part("_nccl")._shift(world) == {2: 44, 3: 44, 16: 44, 100: 47}[world]
    assert world * 2 ** (64 - part("_nccl")._shift(world)) <= 2**24


class SingleRankBench:
    """The bench of one rank of one, whose ring ends where it begins."""

    rank, world, node_host = 0, 1, "127.0.0.1"
    rng = np.random.default_rng(3)

    def need(self, nbytes):
        pass

    def exchange(self, value):
        return [value]


def test_a_received_word_that_is_wrong_fails_the_check():
    """A ring of one rank connects to itself: the listener accepts the connection that the same thread has begun."""
    rank = part("_across").TcpRank(SingleRankBench(), part("_operations").COLLECTIVES["send_recv"], 2**20)
    rank.received.fill(np.nan)
    with pytest.raises(WrongAnswer, match="262144 of 262144"):
        rank.check()
    rank.call()
    rank.check()
    rank.received[3] += 1
    with pytest.raises(WrongAnswer, match="1 of 262144"):
        rank.check()
    rank.close()


@pytest.mark.parametrize("operation", ["send_recv", "all_reduce"])
def test_earlier_words_are_found_because_each_check_has_others(operation):
    task = part("_across").across(SingleRankBench(), "tcp", 2, 2, operation, 2**20)
    expect_found(task, opened())
    task.close()


NODES = tuple(f"gpu{number:02}" for number in range(8))
ACROSS = Case("collectives", "across", (("by", "nccl"), ("nodes", 2), ("size_bytes", 2**28)), ranks=2)


def written(folder, meetings, factors):
    """Write the run files of meetings of eight nodes, some of which are slow; return the record of them."""
    rng = np.random.default_rng(1)
    for meeting in meetings:
        node_variables = folder / pairs.PAIRS / meeting.folder
        node_variables.mkdir(parents=True, exist_ok=True)
        rate = 4e10 * float(np.exp(rng.normal(0, 0.003)))
        for node in meeting.pair:
            rate *= factors.get(node, 1.0)
        timed = make.timing(*[2**28 / rate] * 3)
        series = dataclasses.replace(timed, work=Work(payload=2**28), quantity="payload")
        content = gzip.compress(store.encode_run(make.run(make.result(series, of=ACROSS))))
        for node in meeting.pair:
            (node_variables / f"{NODES[node]}.jsonl.gz").write_bytes(content)
    return PairsRecord(NODES, tuple(meetings))


ROUNDS = [
    PairMeasurement(number, *pair, str(number)) for number, turn in enumerate(links.schedule(8, 5), 1) for pair in turn
]


def test_a_slow_node_is_found_from_the_run_files_of_pairs(tmp_path):
    verdict = pairs.judge(written(tmp_path, ROUNDS, {3: 0.9}), tmp_path)
    (suspect,) = verdict.suspects
    assert (suspect.unit, suspect.name, suspect.findings[0].case) == ("node", "gpu03", ACROSS.id)
    assert suspect.slowdown == pytest.approx(0.1, abs=0.01)
    assert fleet_status(verdict) == 0, "nobody is guilty before it was measured again"
    assert not [note for note in verdict.notes if note.startswith("not measured")]


def test_rates_of_pairs_that_were_alone_are_kept_apart(tmp_path):
    alone = [PairMeasurement(0, 0, 1, "alone-0"), PairMeasurement(0, 2, 3, "alone-1")]
    record = written(tmp_path, [*ROUNDS, *alone], {3: 0.8})
    assert set(pairs.rates_of(record, tmp_path)[ACROSS.id]) == {meeting.pair for meeting in ROUNDS}
    rates = pairs.rates_of(record, tmp_path, is_alone=True)[ACROSS.id]
    assert rates[2, 3] / rates[0, 1] == pytest.approx(0.8, rel=0.02)


def test_a_slow_link_is_named_by_both_of_its_nodes_in_the_family_of_links(tmp_path):
    pair = ROUNDS[0].pair
    rates = pairs.rates_of(written(tmp_path, ROUNDS, {}), tmp_path)
    rates[ACROSS.id][pair] *= 0.8
    (suspect,) = links.judge_pairs(NODES, rates).suspects
    assert (suspect.unit, suspect.name) == ("link", " to ".join(NODES[node] for node in pair))
    assert suspect.findings[0].family == "links between nodes"
    assert links.pair_of(suspect.findings[0], NODES, rates[ACROSS.id]) == pair


@pytest.mark.parametrize(("alone", "status"), [(None, 0), (0.01, 0), (0.08, 1)])
def test_only_a_suspect_that_is_also_slow_alone_is_confirmed(tmp_path, alone, status):
    verdict = pairs.judge(written(tmp_path, ROUNDS, {3: 0.9}), tmp_path)
    (finding,) = verdict.suspects[0].findings
    assert fleet_status(pairs.confirmed(verdict, {finding: alone})) == status


def test_a_pair_that_was_not_measured_is_reported_and_the_others_are_judged(tmp_path):
    record = written(tmp_path, ROUNDS, {})
    first = dataclasses.replace(ROUNDS[0], reason="gpu00 died: its process ended")
    verdict = pairs.judge(dataclasses.replace(record, meetings=(first, *ROUNDS[1:])), tmp_path)
    names = " and ".join(NODES[node] for node in first.pair)
    assert f"not measured: {names} in round 1: gpu00 died: its process ended" in verdict.notes
    assert [group.components for group in verdict.groups] == [8, len(ROUNDS) - 1]
    assert verdict.is_judged
    verdict = pairs.judge(PairsRecord(NODES), tmp_path)
    assert (fleet_answer(verdict), fleet_status(verdict)) == ("cannot be judged: no pair has a figure", 4)


@pytest.mark.slow
def test_a_slow_node_is_measured_again_alone_beside_a_healthy_pair_and_confirmed(tmp_path, monkeypatch):
    monkeypatch.setattr(inventory, "facts", lambda: make.facts(make.device("host", "processor")))
    fleet = _fleet.ThreadFleet(tmp_path / "pairs", 6)
    order = NodeOrder(pairs.SUITES, filters=pairs.FILTERS, time_limit_s=30.0)
    asked = Settings(pairs.SUITES, ("host",), filters=pairs.FILTERS)
    manifest = make.manifest(facts=make.facts(make.device("host", "processor")), settings=asked)
    for rank in range(6):
        seconds = 2**28 / 4e10 / (0.81 if rank == 3 else 1.0)  # the figure of a pair is the mean of its two nodes
        timed = make.timing(*[seconds] * 3)
        series = dataclasses.replace(timed, work=Work(payload=2**28), quantity="payload")
        path = tmp_path / f"{rank}.jsonl.gz"
        files.write(path, make.result(series, of=ACROSS, devices=("host",)), manifest=manifest)
        fleet.node(rank, path)
    request = FleetRequest(order, fleet.folder, patience=_fleet.PATIENCE)
    with PairsSession(fleet.launch, request, fleet.watch) as session:
        answer = session.measure(5)
    fleet.launch.board.remove()
    for thread in fleet.threads:
        thread.join(20)
        assert not thread.is_alive()
    (suspect,) = answer.suspects
    assert (suspect.name, suspect.state, fleet_status(answer)) == ("gpu-3", "confirmed", 1)
    assert suspect.findings[0].again == pytest.approx(0.1, abs=0.005)
    assert sorted(path.name for path in (fleet.folder / pairs.PAIRS).iterdir()) == [*"12345", "alone-0", "alone-1"]
