"""Fleets for tests: the digest of a recorded run, copied to as many nodes and GPUs as wanted, perturbed by rule."""

import functools
import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

from gpubench.analysis.overview import DigestBuilder, NodeDigest
from gpubench.model import store
from gpubench.model.fleet import Fleet, FleetNode

_RECORDING = Path(__file__).parent / "recordings/h200x2-headline.jsonl.gz"
_SPREADS = {"compute": 0.01, "host": 0.01}  # standard deviation of the natural logarithms of rates between components
_SPREAD = 0.002  # the standard deviation of the other families
_CLOCK_HZ = 1.98e9


@functools.cache
def template():
    """Return the digest of a recorded run on two H200, their host and the links between them."""
    builder = DigestBuilder()
    store.scan(_RECORDING, builder.add)
    return builder.digest("recorded")


def fleet(nodes, gpus, slow=None, states=None, silent=None, rack_size=0, seed=0):
    """Return a fleet of `nodes` nodes with `gpus` GPUs each, and the digests of the nodes that answered.

    The nodes are named gpu00, gpu01, …. `slow` maps (node, device) to {family: slowdown as a fraction}, `states` maps
    (node, device) to labels of its cases ("thermal"), and `silent` maps a node to its status and the reason.
    With `rack_size` the nodes stand in racks of so many. Seeds give different fleets.
    """
    slow, states, silent = slow or {}, states or {}, silent or {}
    names = [f"gpu{index:0{max(2, len(str(nodes - 1)))}}" for index in range(nodes)]
    draw = random.Random(seed)
    digests = [_digest(name, gpus, slow, states, draw) for name in names if name not in silent]
    asked = []
    for index, name in enumerate(names):
        status, reason = silent.get(name, ("answered", ""))
        rack = f"rack-{index // rack_size}" if rack_size else ""
        asked.append(FleetNode(name, status, 61.5, "" if reason else f"{name}.jsonl.gz", reason, rack))
    return Fleet(tuple(asked), "slurm", seconds=75.0, at_once=nodes), digests


def _digest(name, gpus, slow, states, draw):
    """Return the digest of one node with `gpus` GPUs, a link between each neighbouring two, and the host."""
    kinds = {component.kind: component for component in template().components}
    devices = [f"cuda:{index}" for index in range(gpus)]
    made = [_component(kinds["GPU"], name, (device,), slow, states, draw) for device in devices]
    if "host" in kinds:
        made.append(_component(kinds["host"], name, kinds["host"].devices, slow, states, draw))
    if "link" in kinds:
        pairs = itertools.pairwise(devices)
        made += [_component(kinds["link"], name, pair, slow, states, draw) for pair in pairs]
    return NodeDigest(name, tuple(made), template().versions)


def _component(like, name, devices, slow, states, draw):
    """Return a component like a recorded one, with random differences of its rates and the wanted slowdown."""
    slower = slow.get((name, devices[0]), {}) if len(devices) == 1 else slow.get((name, devices), {})
    more = states.get((name, devices[0]), frozenset()) if len(devices) == 1 else frozenset()
    rates = {}
    for key, rate in like.rates.items():
        moved = draw.gauss(0.0, _SPREADS.get(key.family, _SPREAD)) + math.log1p(-slower.get(key.family, 0.0))
        value = rate.value * math.exp(moved if key.better == "more" else -moved)
        clock = _CLOCK_HZ * (0.95 if "thermal" in more else 1.0)
        rates[key] = rate._replace(log=rate.log + moved, value=value, clock_hz=clock, states=frozenset(more))
    heat = 45.0 + 5 * draw.random() + (20.0 if "thermal" in more else 0.0)
    uuids = tuple(f"GPU-{name}-{device}" for device in devices)
    return replace(like, devices=devices, uuids=uuids, rates=rates, temperature_c=heat)
