"""Simulated pairs of nodes: how often a slow node and a slow link are found, and how often a healthy one is accused.

    bash ci/study.sh links_simulation [--trials 400]

One node is 10 % slow, one link between two other nodes 20 %, and each rate has normal noise of 0.5 %. `found`
counts the trials in which both were found; `false` those in which anything else was accused, `healthy` those in which
anything was accused while nothing was slow. docs/fleet.md shows the table.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import numpy as np

from gpubench.judging import links


def trial(rng: np.random.Generator, nodes: int, rounds: int, is_healthy: bool, noise: float) -> tuple[bool, bool]:
    """Return whether both the slow node and the slow link were found, and whether anything else was accused."""
    pairs = sorted({pair for turn in links.schedule(nodes, rounds) for pair in turn})
    slow_node = int(rng.integers(nodes))
    others = [pair for pair in pairs if slow_node not in pair]
    slow_link = others[rng.integers(len(others))]
    rates = {}
    for pair in pairs:
        rate = 4e10 * float(np.exp(rng.normal(0, noise)))
        if not is_healthy:
            rate *= (0.9 if slow_node in pair else 1) * (0.8 if pair == slow_link else 1)
        rates[pair] = rate
    judgement = links.judge(rates)
    slow_nodes = {node for node, effect in judgement.nodes.items() if effect.is_suspect}
    slow_links = {pair for pair, effect in judgement.links.items() if effect.is_suspect}
    true_nodes, true_links = (set(), set()) if is_healthy else ({slow_node}, {slow_link})
    both = slow_nodes >= true_nodes and slow_links >= true_links
    return both, bool(slow_nodes - true_nodes or slow_links - true_links)


def counts(nodes: int, rounds: int, trials: int, noise: float = 0.005) -> tuple[int, int, int]:
    """Return the trials that found both slow ones, that accused others too, and healthy ones that accused anything."""
    rng = np.random.default_rng([nodes, rounds])
    slow = [trial(rng, nodes, rounds, False, noise) for _ in range(trials)]
    healthy = [trial(rng, nodes, rounds, True, noise) for _ in range(trials)]
    return sum(detected for detected, _ in slow), sum(false for _, false in slow), sum(false for _, false in healthy)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    trials = parser.parse_args().trials
    rows = ["| nodes | rounds | noise | found | false | healthy |", "|---|---|---|---|---|---|"]
    for rounds, noise, nodes in itertools.product((5, 3), (0.005, 0.02), (8, 16, 64)):
        cells = " | ".join(f"{count} of {trials}" for count in counts(nodes, rounds, trials, noise))
        rows.append(f"| {nodes} | {rounds} | {noise:.1%} | {cells} |")
    sys.stdout.write("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
