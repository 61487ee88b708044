"""Simulate how often the rule for fleets accuses healthy fleets and finds slow GPUs, beside the rules of other tools.

bash ci/study.sh fleet_simulation [FLEETS]    # 4000 by default, some minutes; prints the table of docs/fleet.md

Each fleet is measured in 20 cases of five families, with normal deviations between GPUs. For each slowdown there are a
quarter as many fleets, in which one GPU is slow in one case.
"""

import math
import sys

import numpy as np
from _fleets import template

from gpubench.analysis.overview import CaseKey
from gpubench.judging import outliers
from gpubench.judging.fleet import Place
from gpubench.judging.fleet_rule import ComparableGroup, Member, judged_rows

CASES, FAMILIES = 20, ("memory", "compute", "host link", "latency", "collectives")
SPREADS, SIZES, SLOW = (0.002, 0.01, 0.025), (8, 32, 256), (0.0, 0.03, 0.05, 0.10, 0.25)
COMPONENT = template().components[0]
KEYS = tuple(
    CaseKey(f"case-{number}", 1, "hot", "B/s", "more", FAMILIES[number % len(FAMILIES)], "quick")
    for number in range(CASES)
)


def ours(rates):
    """Return the components that the rule accuses by cases, populations and families together."""
    members = tuple(Member(Place(str(number), ()), COMPONENT) for number in range(rates.shape[1]))
    rows, matrix, errors, _ = judged_rows(ComparableGroup(members, KEYS, rates, np.zeros_like(rates)))
    is_suspect = outliers.find(matrix, errors).is_suspect
    accused = np.zeros(rates.shape, dtype=bool)
    for row, suspects in zip(rows, is_suspect, strict=True):
        if row.key is not None:
            accused[KEYS.index(row.key)] |= suspects
        else:
            accused[next(index for index, key in enumerate(KEYS) if key.family == row.family)] |= suspects
    return accused


def superbench(rates):
    """Accuse values more than 5 % below the mean of the values that are within 5 % of it."""
    kept = np.ones(rates.shape, dtype=bool)
    values = np.exp(rates)
    for _ in range(rates.shape[1]):
        mean = np.nanmean(np.where(kept, values, np.nan), axis=1, keepdims=True)
        new = kept & (np.abs(values / mean - 1) <= 0.05)
        new = np.where(new.any(axis=1, keepdims=True), new, kept)
        if (new == kept).all():
            break
        kept = new
    return values / mean - 1 < -0.05


def megatron(rates):
    """Accuse values below the mean by more than one standard deviation and by more than 10 %."""
    values = np.exp(rates)
    mean, deviation = values.mean(axis=1, keepdims=True), values.std(axis=1, keepdims=True)
    return (values < mean - deviation) & (values < 0.9 * mean)


def resiliency(rates):
    """Accuse values below 0.75 of the fastest."""
    return np.exp(rates) < 0.75 * np.exp(rates.max(axis=1, keepdims=True))


def median_mad(rates):
    """Accuse values 2 % and k robust deviations below the median; k gives 1 % of fleets with a false alarm per case."""
    middle = np.median(rates, axis=1, keepdims=True)
    deviation = np.maximum(1.4826 * np.median(np.abs(rates - middle), axis=1, keepdims=True), 0.002)
    limit = float(np.sqrt(2) * _inverse_erf(1 - 2 * 0.01 / rates.shape[1]))
    return rates - middle < -np.maximum(-math.log1p(-0.02), limit * deviation)


def _inverse_erf(value):
    """Import scipy at the first call alone: it takes most of the time of a start."""
    from scipy.special import erfinv

    return erfinv(value)


RULES = {
    "gpubench": ours,
    "5 % (SuperBench)": superbench,
    "mean − 1 sd and 10 % (Megatron-LM)": megatron,
    "0.75 of the fastest": resiliency,
    "median/MAD per case": median_mad,
}


def outcome(rule, spread, size, slow, fleets, rng):
    """Return the shares of fleets that accuse the slow GPU in its case, accuse another GPU, and accuse any."""
    detected = wrong = 0
    for _ in range(fleets):
        rates = rng.normal(0.0, spread, (CASES, size))
        if slow:
            rates[0, 0] += math.log1p(-slow)
        accused = rule(rates)
        detected += bool(accused[:, 0].any()) if slow else 0
        if slow:
            accused[:, 0] = False
        wrong += bool(accused.any())
    return detected / fleets, wrong / fleets


def main():
    """Print how often each rule accuses a healthy fleet, and how often it finds a slow component."""
    fleets = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    for spread in SPREADS:
        for size in SIZES:
            for name, rule in RULES.items():
                rng = np.random.default_rng([size, round(spread * 1e4)])
                healthy = outcome(rule, spread, size, 0.0, fleets, rng)[1]
                seen = [outcome(rule, spread, size, slow, max(fleets // 4, 1), rng)[0] for slow in SLOW[1:]]
                finds = " / ".join(f"{100 * share:.0f}" for share in seen)
                print(f"{spread:.1%} {size:4} {name:36} accuses {healthy:6.2%}  finds {finds} %", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
