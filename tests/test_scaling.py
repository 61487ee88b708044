"""Collectives of more devices, computed: closed forms against routed schedules, and the model against recordings."""

import json
import statistics
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from _modules import suite_module

from gpubench.analysis.summary import Summary
from gpubench.analysis.views import scaling
from gpubench.analysis.views.scaling import Hop, Scaling
from gpubench.knowledge.data_sheets import data_sheets
from gpubench.model import Device, View, store

HOP = Hop(2e-6, 400e9)
RECORDING = Path(__file__).parent / "recordings/whole/h200x2.jsonl.gz"
VIEW = View("scaling", "Collectives", ("incast", "topology"), "size_bytes", by=("topology",))
TOPOLOGY = suite_module("patterns", "_topology")


@pytest.mark.parametrize("topology", ["ring", "mesh", "star", "tree"])
@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_an_all_gather_takes_as_long_as_the_steps_of_its_schedule(topology, ranks):
    """In each step the rank that sends or receives most determines the time; that is all the closed forms say."""
    block, steps = 2**20, defaultdict(list)
    for delivery in TOPOLOGY.TOPOLOGIES[topology](ranks):
        steps[delivery.step].append(delivery)
    seconds = 0.0
    for deliveries in steps.values():
        busiest = max(
            *Counter(delivery.source for delivery in deliveries).values(),
            *Counter(delivery.target for delivery in deliveries).values(),
        )
        seconds += HOP.alpha_s + busiest * block / HOP.beta
    assert scaling.all_gather(HOP, topology, ranks, block) == pytest.approx(seconds)


def routes(fabric, gpus):
    """Yield the path of every pair's part: on a ring the shorter way, half each way where both are equal."""
    for source in range(gpus):
        for target in set(range(gpus)) - {source}:
            if fabric == "tree":
                up, down = [source + 1], [target + 1]  # a heap: the parent of k is k // 2
                while up[-1] != down[-1]:
                    longer = up if up[-1] > down[-1] else down
                    longer.append(longer[-1] // 2)
                yield 1.0, up + down[-2::-1]
                continue
            distance = (target - source) % gpus
            for way, hops in ((1, distance), (-1, gpus - distance)):
                if 2 * hops <= gpus:
                    yield (0.5 if 2 * hops == gpus else 1.0), [(source + way * i) % gpus for i in range(hops + 1)]


@pytest.mark.parametrize(("fabric", "links"), [("ring", 2), ("tree", 3)])
def test_an_all_to_all_takes_as_long_as_its_busiest_link(fabric, links):
    for gpus in (8, 32) if fabric == "ring" else (7, 31, 127):
        nbytes, loads = 2.0**20, Counter[Any]()
        for share, path in routes(fabric, gpus):
            loads.update(dict.fromkeys(pairwise(path), 0.0))
            for link in pairwise(path):
                loads[link] += share * nbytes / gpus
        busiest = max(loads.values()) / (HOP.beta / links)
        modelled = scaling.all_to_all(Hop(0.0, HOP.beta), fabric, gpus, nbytes)
        assert modelled == pytest.approx(busiest, rel=0.25 if fabric == "tree" and gpus == 7 else 0.07)


def test_a_mesh_and_a_switch_move_the_least_data_and_a_ring_waits_for_the_most_messages():
    for operation in scaling.OPERATIONS.values():
        for gpus in scaling.COUNTS:
            seconds = {fabric: operation(HOP, fabric, gpus, 2.0**30) for fabric in scaling.FABRICS}
            assert min(seconds, key=seconds.__getitem__) == "mesh"
            short = {fabric: operation(HOP, fabric, gpus, 8.0) for fabric in scaling.FABRICS}
            assert short["mesh"] < short["switch"] < short["ring"]
    assert scaling.message(HOP, "ring", 576) == 288 * scaling.message(HOP, "switch", 576)


def test_the_model_is_within_15_per_cent_of_what_two_gpus_showed():
    """At 64 KiB a ring took less than half as long: there the single hop varied from 16 to 67 µs."""
    summary = Summary(store.read_run(RECORDING))
    (found,) = Scaling.of(summary, "patterns", VIEW)
    assert found.beta == pytest.approx(404.0e9, rel=1e-3)
    assert found.alpha_s == pytest.approx(33.71e-6, rel=1e-3)
    assert len(found.errors) == 8
    assert found.error == pytest.approx(0.0433, abs=1e-4)
    assert max(abs(model / measured - 1) for _, measured, model in found.errors) == pytest.approx(1.186, abs=0.001)
    computed, compared = found.tables
    assert "median error on this run's cases is 4.3 %" in computed.note
    assert [len(computed.rows), len(compared.rows)] == [5 * len(scaling.COUNTS), 8]
    assert [line["median"] for line in found.lines()] == [found.error]


def peer_rate(name):
    """Return the bytes per second of a GPU's NVLink on its data sheet, in one direction."""
    device = Device("cuda:0", "cupy", name, "sm_90")
    return next(sheet.peaks["link.peer"] for sheet in data_sheets() if sheet.is_of(device))


def test_the_model_is_within_15_per_cent_of_published_results_of_eight_gpus():
    """The hop is measured on two H200, and its rate scales with NVLink's on the data sheet; NCCL's rings are assumed.

    Below a megabyte NCCL's protocols for short messages are several times faster than the model's steps."""
    (found,) = Scaling.of(Summary(store.read_run(RECORDING)), "patterns", VIEW)
    large, small = [], []
    for published in json.loads((Path(__file__).parent / "data/nccl_tests_8.json").read_text()):
        assert published["source"].startswith("https://github.com/")
        rates = [peer_rate(name) for name in (published["gpu"], "NVIDIA H200")]
        hop = Hop(found.alpha_s, found.beta * rates[0] / rates[1])
        for nbytes, microseconds in published["microseconds"].items():
            if published["operation"] == "all-reduce":
                seconds = scaling.all_reduce(hop, "ring", 8, int(nbytes))
            else:  # a reduce-scatter moves what an all-gather does
                seconds = scaling.all_gather(hop, "ring", 8, int(nbytes) / 8)
            (large if int(nbytes) >= 2**20 else small).append(seconds / (1e-6 * microseconds) - 1)
    assert len(large) == 43
    assert statistics.median(map(abs, large)) == pytest.approx(0.123, abs=0.001)
    assert max(map(abs, large)) < 2
    assert min(small) > 1
