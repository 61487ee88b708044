"""Simulate how often the rule for fleets accuses healthy fleets, and how often it finds a slow GPU, node or rack.

bash ci/study.sh fleet_simulation [FLEETS] [WORD…]    # 1000 fleets a cell by default; only cells that contain all words

All 832 cells take about two core-hours.

Each fleet is measured in 20 cases of five families. A slow GPU is slow in one family, or in one case. A liar, a GPU of
another node, reports too much in all cases. Of the variance of an effect (of GPUs, nodes or racks), one half belongs to
single values, and the other is shared by the cases of a family. Two modes: half of the nodes are 8 % slower in one
family.
"""

import itertools
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from _fleets import template

from gpubench.analysis.overview import CaseKey
from gpubench.judging.fleet import Place
from gpubench.judging.fleet_rule_groups import ComparableGroup, Member, Settings
from gpubench.judging.fleet_rule_levels import judge_levels

CASES, FAMILIES = 20, ("memory", "compute", "host link", "latency", "collectives")
SIZES, SPREADS = (5, 6, 8, 32, 256), (0.002, 0.01)
COMPONENT = template().components[0]
FAMILY = np.arange(CASES) % len(FAMILIES)
KEYS = tuple(
    CaseKey(f"case-{number}", 1, "hot", "B/s", "more", FAMILIES[number % len(FAMILIES)], "quick")
    for number in range(CASES)
)


class World(NamedTuple):
    """The healthy deviations of a kind of fleet: the noise of single values, and what else the GPUs differ by."""

    name: str
    noise: str = "normal"
    effect: str = ""  # GPU, node or rack
    modes: float = 0.0  # half of the nodes are so much slower in one family
    missing: float = 0.0


class Fault(NamedTuple):
    """What is wrong with a fleet; the fault is that of GPU 0, of its node or of its rack."""

    name: str
    unit: str = ""
    slow: float = 0.0
    is_one_case: bool = False
    liar: float = 0.0


WORLDS = (
    World("normal"),
    World("t(3)", "t(3)"),
    World("exponential", "exponential"),
    World("GPU effect", effect="GPU"),
    World("node effect", effect="node"),
    World("rack effect", effect="rack"),
    World("two modes", modes=0.08),
    World("30 % missing", missing=0.3),
)
FAULTS = (
    Fault("healthy"),
    *(Fault(f"liar +{100 * more:.0f} %", liar=more) for more in (0.05, 0.10, 0.20)),
    Fault("5 % in a family", "GPU", 0.05),
    Fault("5 % in one case", "GPU", 0.05, is_one_case=True),
    *(Fault(f"5 % in a family, liar +{100 * more:.0f} %", "GPU", 0.05, liar=more) for more in (0.05, 0.10, 0.20)),
    Fault("5 % in one case, liar +5 %", "GPU", 0.05, is_one_case=True, liar=0.05),
    Fault("node 3 % in a family", "node", 0.03),
    Fault("rack 2 % in a family", "rack", 0.02),
)


def layout(size):
    """Return the node and the rack of each GPU: eight GPUs a node (small fleets: one or two), and four nodes a rack."""
    in_node = 8 if size > 8 else 2 if size == 8 else 1
    nodes = np.arange(size) // in_node
    return nodes, nodes // 4 if size > 32 else nodes // 2


def liar(size):
    """Return the number of the GPU that may report too much: the first one of the second node."""
    return int(np.flatnonzero(layout(size)[0] == 1)[0])


def draw(kind, rng, shape):
    """Return values of this noise with a standard deviation of one; the tail of exponential noise is slow."""
    if kind == "t(3)":
        return rng.standard_t(3, shape) / math.sqrt(3)
    return 1 - rng.exponential(size=shape) if kind == "exponential" else rng.normal(size=shape)


def rates_of(world, fault, size, spread, rng):
    """Return the logarithms of the rates of one fleet, shape (cases, GPUs)."""
    nodes, racks = layout(size)
    units = {"GPU": np.arange(size), "node": nodes, "rack": racks}
    rates = draw(world.noise, rng, (CASES, size))
    if world.effect:
        shared = rng.normal(size=(len(FAMILIES), units[world.effect].max() + 1))
        rates = (rates + shared[FAMILY][:, units[world.effect]]) / math.sqrt(2)
    rates *= spread
    rates[np.ix_(FAMILY == 1, nodes % 2 == 0)] += math.log1p(-world.modes)
    if fault.unit:
        rows = np.arange(CASES) == 0 if fault.is_one_case else FAMILY == 0
        rates[np.ix_(rows, units[fault.unit] == 0)] += math.log1p(-fault.slow)
    rates[:, liar(size)] += math.log1p(fault.liar)
    is_missing = rng.random(rates.shape) < world.missing
    is_missing[0, 0] &= not fault.is_one_case
    rates[is_missing] = np.nan
    return rates


def judged(rates):
    """Return the suspects as kind and number, and whether the liar is named as implausibly fast."""
    size = rates.shape[1]
    nodes, racks = layout(size)
    members = tuple(Member(Place(f"node{node}", (f"cuda:{gpu}",)), COMPONENT) for gpu, node in enumerate(nodes))
    group = ComparableGroup((Settings(members, COMPONENT.fingerprint),), members, KEYS, rates, np.zeros_like(rates))
    found = judge_levels(group, {f"node{node}": f"rack{rack}" for node, rack in zip(nodes, racks, strict=True)})
    suspects = {
        (level.units.kind, int(unit))
        for level in found.levels
        for unit in np.flatnonzero(level.found.is_suspect.any(0))
    }
    return suspects, bool(found.levels[-1].found.is_fast[:, liar(size)].any())


def outcome(world, fault, size, spread, fleets):
    """Return the shares of fleets in which the faulty one is named, anything else is accused, and the liar is named."""
    rng = np.random.default_rng([size, round(spread * 1e4), *map(ord, world.name + fault.name)])
    named = false = fast = 0
    nodes, racks = layout(size)
    faulty = {"": set(), "GPU": {("GPU", 0)}}.get(fault.unit)
    inside = {("GPU", liar(size))} if fault.liar else set()
    if faulty is None:
        of_unit = np.flatnonzero((nodes if fault.unit == "node" else racks) == 0)
        inside = {("GPU", int(gpu)) for gpu in of_unit} | {("node", int(node)) for node in nodes[of_unit]}
        faulty = {(fault.unit, 0)}
    for _ in range(fleets):
        suspects, is_fast = judged(rates_of(world, fault, size, spread, rng))
        named += bool(suspects & faulty)
        false += bool(suspects - faulty - inside)
        fast += is_fast
    return named / fleets, false / fleets, fast / fleets


def main():
    """Print a line for each cell; each core simulates a cell."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    words = [word for word in sys.argv[1:] if not word.isdigit()]
    cells = {
        f"{spread:.1%} {world.name}; {fault.name}; {size} GPUs": (world, fault, size, spread)
        for spread, world, fault, size in itertools.product(SPREADS, WORLDS, FAULTS, SIZES)
        if size > 32 or fault.unit not in ("node", "rack")
    }
    chosen = {
        name: (*cell, (numbers or [1000])[0]) for name, cell in cells.items() if all(word in name for word in words)
    }
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for (name, cell), shares in zip(
            chosen.items(), pool.map(outcome, *zip(*chosen.values(), strict=True)), strict=True
        ):
            named, false, fast = shares
            finds = f"  finds {named:6.1%}" if cell[1].unit else ""
            liar = f"  names the liar {fast:6.1%}" if cell[1].liar else f"  names a fast one {fast:6.1%}"
            print(f"{name:70} accuses wrongly {false:6.2%}{finds}{liar}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
