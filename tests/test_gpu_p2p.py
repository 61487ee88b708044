"""On two real GPUs (`pytest -m gpu`): bulk copies over their link, and 8-byte messages beside bulk copies."""

import numpy as np
import pytest
from _poison import called

from gpubench import plugins, stats
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.measuring import inventory
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES
from gpubench.model import Case

pytestmark = pytest.mark.gpu

SUITE = plugins.load("suites", "p2p")
SIZES = [8, 16, 24, 4096, 2**20 + 8, 2**26]
GIB = 2**30


@pytest.fixture(scope="module")
def pair():
    facts = inventory.facts()
    reachable = {device.id: device for device in facts.devices if device.backend == "cupy"}
    first = next((device for device in reachable.values() if device.peers), None)
    if first is None:
        pytest.skip("needs two GPUs that reach each other's memory")
    return plugins.load("backends", "cupy").open(first), facts, (first, reachable[first.peers[0]])


@pytest.fixture
def build(pair):
    """Yield a function that builds a case on the pair; what it queued is finished at the end of the test."""
    gpu, facts, devices = pair

    def built(name, **params):
        if "bulk" in params.values() and "bulk_copy" not in gpu.traits.features:
            pytest.skip("this GPU has no bulk copies")
        case = Case("p2p", name, (("device", devices[0].id), ("peer", devices[1].id), *params.items()))
        return SUITE.build(Bench(gpu, case, Target(facts, devices[0]), SUITE.package, 1, devices=devices))

    yield built
    gpu.elsewhere()
    gpu.release()


def measured(pair, task, tier="smoke"):
    return Engine(pair[0], POLICIES[tier]).measure(task).series


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["read", "write", "both"])
def test_a_bulk_copy_is_checked_and_its_check_can_fail(build, name, size):
    task = build(name, by="bulk", size_bytes=size)
    for _ in range(2):
        called(task)


@pytest.mark.parametrize("name", ["read", "write"])
def test_bulk_copies_reach_most_of_the_copy_engines_rate(pair, build, name):
    seconds = {
        by: stats.median(measured(pair, build(name, by=by, size_bytes=GIB))[0].values) for by in ("engine", "bulk")
    }
    assert seconds["bulk"] < 1.25 * seconds["engine"]


@pytest.mark.parametrize(
    ("beside", "traffic"),
    [
        ("engine", "read"),
        ("engine", "write"),
        *((by, to) for by in ("kernel", "bulk") for to in ("read", "write", "both")),
    ],
)
@pytest.mark.parametrize("message", ["load", "copy", "signal"])
def test_messages_arrive_while_bulk_copies_run(pair, build, message, beside, traffic):
    task = build("control", message=message, beside=beside, traffic=traffic)
    series = measured(pair, task)
    times = series[0].values
    observed = {timing.label: stats.median(timing.values) for timing in series[1:]}
    assert 1e-7 < stats.median(times) < 1e-2
    # a copy over an idle link first waits until the link is active
    assert observed["slowdown"] > (0.4 if message == "copy" else 0.8)
    rates = [value for label, value in observed.items() if label.startswith("bulk_")]
    assert len(rates) == (2 if traffic == "both" else 1)
    assert min(rates) > 1e10  # every link between GPUs has at least this rate


@pytest.mark.parametrize("message", ["load", "copy", "signal"])
def test_messages_alone_are_as_fast_as_the_alone_part_of_those_beside_copies(pair, build, message):
    alone = stats.median(measured(pair, build("control", message=message, beside="nothing", traffic="none"))[0].values)
    series = measured(pair, build("control", message=message, beside="engine", traffic="read"))
    beside, slowdown = (stats.median(timing.values) for timing in series[:2])
    assert beside / slowdown == pytest.approx(alone, rel=0.3)


def test_the_walk_of_timed_loads_takes_as_long_as_the_one_that_is_timed_whole(pair, build):
    walk = measured(pair, build("latency", of="load"))[0]
    timed = measured(pair, build("control", message="load", beside="nothing", traffic="none"))[0]
    per_load = stats.median(walk.values) / walk.work.items
    assert np.median(timed.values) == pytest.approx(per_load, rel=0.1)
