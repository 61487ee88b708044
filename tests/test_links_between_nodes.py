"""Pairs of nodes: the schedule of pairs, and which node or link is slow."""

import itertools
from collections import Counter

import numpy as np
import pytest

from gpubench.judging import links


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 9, 16])
def test_every_two_nodes_meet_once_before_any_two_meet_again(nodes):
    rounds = nodes - 1 + nodes % 2
    met = Counter(pair for turn in links.schedule(nodes, 2 * rounds) for pair in turn)
    assert met == dict.fromkeys(itertools.combinations(range(nodes), 2), 2)


@pytest.mark.parametrize("nodes", [2, 7, 8])
def test_the_pairs_of_a_round_are_disjoint_and_their_number_is_the_largest_possible(nodes):
    for turn in links.schedule(nodes, 5):
        assert len({node for pair in turn for node in pair}) == 2 * len(turn) == nodes - nodes % 2


def rates(nodes, rounds, slow_nodes=None, slow_links=None, noise=0.005, seed=0):
    rng = np.random.default_rng(seed)
    factors = slow_nodes or {}
    return {
        pair: 4e10
        * float(np.exp(rng.normal(0, noise)))
        * factors.get(pair[0], 1.0)
        * factors.get(pair[1], 1.0)
        * (slow_links or {}).get(pair, 1.0)
        for turn in links.schedule(nodes, rounds)
        for pair in turn
    }


def suspects(judgement):
    return (
        [node for node, effect in judgement.nodes.items() if effect.is_suspect],
        [pair for pair, effect in judgement.links.items() if effect.is_suspect],
    )


def test_slow_nodes_and_links_are_named_and_no_healthy_one():
    (link,) = (pair for pair in links.schedule(8, 5)[2] if 3 not in pair and 0 in pair)
    judgement = links.judge(rates(8, 5, {3: 0.9}, {link: 0.8}))
    assert suspects(judgement) == ([3], [link])
    assert judgement.nodes[3].slowdown == pytest.approx(0.1, abs=0.01)
    assert judgement.links[link].slowdown == pytest.approx(0.2, abs=0.02)
    assert judgement.typical == pytest.approx(4e10, rel=0.01)
    assert suspects(links.judge(rates(16, 5))) == ([], [])
    first, second = links.schedule(16, 5)[0][:2]
    judgement = links.judge(rates(16, 5, slow_links={first: 0.7, second: 0.7}))
    assert suspects(judgement) == ([], sorted([first, second]))
    assert suspects(links.judge(rates(16, 5, {3: 0.985}, noise=0.0001))) == ([], [])


@pytest.mark.parametrize(
    ("nodes", "rounds", "message"),
    [
        (2, 5, "2 nodes are too few for a verdict, which needs at least 5"),
        (8, 2, "8 pairs do not tell 8 nodes from their links; measure more --rounds"),
    ],
)
def test_too_few_pairs_are_shown_and_not_judged(nodes, rounds, message):
    judgement = links.judge(rates(nodes, rounds))
    assert judgement.too_few == message
    assert suspects(judgement) == ([], [])
    assert judgement.typical == pytest.approx(4e10, rel=0.01)
