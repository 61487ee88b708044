"""Find the components of a fleet that are slower than the others in a case. Pure functions of arrays.

Each component is compared with the mean and the standard deviation of the other components that are no outliers
themselves. Outliers on both sides are taken out together: the rule begins with the components near the median and adds
all that are within the limit, until nothing changes (a forward search: Billor, Hadi & Velleman, Computational
Statistics & Data Analysis 34, 2000). So neither slow nor implausibly fast components hide others. `find` has the
rule, and tests/studies/fleet_simulation.py has the simulations.

For pairs of nodes the model for the logarithm of a rate is log rate(i, j) = μ + aᵢ + aⱼ + ε. A link is slow by its
deletion residual: how far its rate lies below the prediction from the other pairs of its two nodes, over the standard
error of that prediction (Belsley, Kuh & Welsch, Regression Diagnostics, 1980, section 2.1). The slowest links are
removed one after the other, and the suspects are all links up to the last one that is slow beyond chance (Rosner,
Technometrics 25, 1983). Then the effects aᵢ, fitted without these links, are compared with each other. A median polish
finds the same slow nodes and links, but its residuals have no known distribution: with noise of 2 %, it accused a node
or link in 11 to 23 % of healthy fleets, where this rule does so in 1 % (tests/studies/links_simulation.py)."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpubench import stats

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
ALPHA = 0.0011  # the share of healthy fleets that chance may accuse: heavy tails make it up to 1 % (simulated)
LEAST_EFFECT = 0.02  # a smaller slowdown is not worth the repair of a component
LEAST_COMPONENTS = 5  # with fewer components the deviation of the others is too uncertain
LEAST_SPREAD = 0.001  # the standard deviation of a case: components are closer together than this only by chance
_LINK_SPREAD = 0.002  # likewise of the pairs of nodes
MOST_SHARE = 0.2  # the largest share of components or links that can be suspects; more are another population
_LEAST_REFERENCES = 3
MAD_TO_SIGMA = 1.4826  # makes the median absolute deviation of a normal sample estimate its standard deviation
_NEAR = 5.0 * MAD_TO_SIGMA  # the search begins with the components within five robust standard deviations of the median
_MOST_ROUNDS = 10
_FAMILY_FREEDOM = 8.0  # the most degrees of freedom that the other cases of a family add to the variance of a case
# The curves that the scores of one side may have: Student's t of these degrees of freedom (a million: the normal
# curve), and last the exponential curve; their probabilities beforehand; and the probabilities of each curve of the
# slow side together with each of the fast side, which have the same curve with a probability of one half.
_FREEDOMS = (1e6, 6.0, 3.0)
_DENSITIES = np.array(  # the logarithms of the densities of their absolute values at 0
    [
        math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) + math.log(4 / math.pi / freedom) / 2
        for freedom in _FREEDOMS
    ]
)
_OF_CURVES = np.array([0.4, 0.15, 0.3, 0.15])
PRIORS = (np.diag(_OF_CURVES) + np.outer(_OF_CURVES, _OF_CURVES)) / 2
# A median leaves its middle only if two values do, so its tail has twice the degrees of freedom: t(3) becomes t(6).
_OF_MEDIANS = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=float)
_SHARED = 0.1  # the probability that the cases of a component share their deviations, so that medians have them too
_DOUBT = 10.0  # several scores together must be less probable by this factor each: their curve is only estimated
_FIT_ROUNDS = 12
_LEAST_TAIL = 4  # with fewer scores on one side no curve is fitted
# The gap between two populations in their pooled standard deviations, by the number of components: one case in 10 000
# of a single normal population exceeds it (simulated; with fewer than 8 components no gap says enough).
_SIZES = np.array([8.0, 9.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0])
_GAPS = np.array([13.8, 10.5, 9.1, 6.1, 5.1, 4.3, 3.3, 3.0])
_LINK_ALPHA = 0.001  # the share of fleets in which chance accuses a link; it is small because there are many pairs
_LOOK_AHEAD = 1  # links that are removed although none is beyond chance yet, because two slow ones hide each other
_LEAST_FREEDOM = 2  # pairs that must remain beyond the number that the effects of the nodes need
_FULL_LEVERAGE = 1 - 1e-6  # a pair with a larger leverage is the only source of an effect


@dataclass(frozen=True, slots=True)
class Outliers:
    """The result of the rule: arrays with one row for each case and one column for each component.

    `detectable` is the smallest slowdown that would have made it a suspect, as a logarithm; `spread` is the standard
    deviation without outliers. `curves` are the probabilities of the curves of the slow and of the fast side."""

    slowdown: Matrix
    detectable: Matrix
    is_suspect: Mask
    is_fast: Mask
    spread: Matrix
    curves: Matrix

    def above(self, other: "Outliers") -> "Outliers":
        """Return these rows with the rows of `other` below them; the curves stay."""
        names = ("slowdown", "detectable", "is_suspect", "is_fast", "spread")
        return replace(self, **{name: np.vstack([getattr(self, name), getattr(other, name)]) for name in names})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the rule: the smallest effect (a fraction) and spread, and the smallest number of components.

    `alpha` is the share of healthy fleets that chance may accuse in any of the rows, and `curves` are the probabilities
    of the curves of the scores before any score is known."""

    effect: float = LEAST_EFFECT
    spread: float = LEAST_SPREAD
    components: int = LEAST_COMPONENTS
    alpha: float = ALPHA
    curves: Matrix = field(default_factory=lambda: PRIORS)


class _Scores(NamedTuple):
    """How far each component is below the mean of the other references: in logarithms and in standard errors.

    `error` is that standard error, `freedom` its degrees of freedom, and `agreement` the share of independent cases."""

    slowdown: Matrix
    error: Matrix
    freedom: Matrix
    spread: Matrix
    agreement: float


def find(
    rates: Matrix,
    errors: Matrix | None = None,
    families: Sequence[str] = (),
    may_refer: Mask | None = None,
    limits: Limits | None = None,
) -> Outliers:
    """Return for each component in each case its slowdown against the others and whether this makes it a suspect.

    `families` are the families of the cases, whose variances are pooled. `may_refer` masks the values with which others
    may be compared."""
    limits = limits or Limits()
    errors = np.zeros_like(rates) if errors is None else np.nan_to_num(errors)
    names = np.array(families or [""] * len(rates))
    pools = (names[:, None] == names[None, :]).astype(float)
    present = np.isfinite(rates)
    usable = present if may_refer is None else present & may_refer
    count = usable.sum(axis=1, keepdims=True)
    is_enough = (present.sum(axis=1, keepdims=True) >= limits.components) & (count >= _LEAST_REFERENCES)
    is_judged = present & is_enough
    usable = usable & is_judged
    centred, inside = _central(rates, usable, pools, limits.spread)
    is_crowd = np.zeros_like(count, dtype=bool)
    most = np.maximum(np.floor(MOST_SHARE * count), np.clip(count // 3, 1, 2))
    for _ in range(_MOST_ROUNDS):
        outside = usable & ~inside
        is_crowd |= (
            np.maximum(*((outside & side).sum(axis=1, keepdims=True) for side in (centred < 0, centred > 0))) > most
        )
        inside = np.where(is_crowd, usable, inside)  # too many for outliers: a population, which accuses nobody
        scores = _scores(centred, inside, errors, pools, limits.spread)
        below, above, curves = _score_limits(scores, inside, usable, limits)
        score = scores.slowdown / scores.error
        now = usable & (is_crowd | ((score <= below) & (score >= -above)))
        if (now == inside).all():
            break
        inside = now
    least = -math.log1p(-limits.effect)
    detectable, fast = (np.maximum(limit * scores.error, least) for limit in (below, above))
    is_outside = is_judged & ~now
    return Outliers(
        np.where(is_judged, scores.slowdown, np.nan),
        np.where(is_judged, detectable, np.nan),
        is_outside & (scores.slowdown > detectable),
        is_outside & (-scores.slowdown > fast),
        scores.spread,
        curves,
    )


def _central(rates: Matrix, usable: Mask, pools: Matrix, least_spread: float) -> tuple[Matrix, Mask]:
    """Return the rates minus the median of their case, 0 where missing, and a mask of the values near that median."""
    centred = np.where(np.isfinite(rates), rates - medians(np.where(usable, rates, np.nan)), 0.0)
    deviations = medians(np.where(usable, np.abs(centred), np.nan))
    of_families = medians(np.where(pools > 0, deviations.T, np.nan))
    near = _NEAR * np.maximum(of_families, least_spread)
    return centred, usable & (np.abs(centred) <= near)


def medians(values: Matrix) -> Matrix:
    """Return the median of the finite values of each row, shape (rows, 1); 0 for a row without any."""
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.isfinite(values).sum(axis=1, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(place, 0), axis=1) for place in ((count - 1) // 2, count // 2))
    return np.nan_to_num((low + np.where(count > 0, high, np.nan)) / 2)


def _scores(centred: Matrix, inside: Mask, errors: Matrix, pools: Matrix, least_spread: float) -> _Scores:
    """Compare each component with the components `inside` but itself.

    The variance of a case is moderated by the variance of its family, the geometric mean over its cases (Smyth,
    Statistical Applications in Genetics and Molecular Biology 3, 2004), which counts as its cases are independent."""
    count = inside.sum(axis=1, keepdims=True)
    values = np.where(inside, centred, 0.0)
    sums, squares = values.sum(axis=1, keepdims=True), (values**2).sum(axis=1, keepdims=True)
    freedom = np.maximum(count - 1.0, 1.0)
    mean = sums / np.maximum(count, 1)
    variance = np.maximum((squares - count * mean**2) / freedom, least_spread**2)
    cases = pools.sum(axis=1, keepdims=True)
    of_family = np.exp(pools @ (np.log(variance) + 1 / freedom + 1 / (3 * freedom**2)) / cases)
    # how much the components' deviations in one case resemble their deviations in another case of the family
    totals = pools @ np.where(inside, (centred - mean) / np.sqrt(variance), 0.0)
    shared = pools @ inside.astype(float)
    pairs = (shared * (shared - 1)).sum(axis=1, keepdims=True)
    correlation = np.clip((totals**2 - shared).sum(axis=1, keepdims=True) / np.maximum(pairs, 1), 0.0, 1.0)
    independent = cases / (1 + (cases - 1) * correlation**2)
    borrowed = np.minimum(_FAMILY_FREEDOM, (independent - 1) * (pools @ freedom) / cases)
    others = np.maximum(count - inside, 1)
    of_others = (sums - values) / others
    own = np.maximum(squares - values**2 - others * of_others**2, 0.0)
    freedom = np.maximum(others - 1 + borrowed, 1.0)
    spread = np.maximum(np.sqrt((own + borrowed * of_family) / freedom), np.maximum(errors, least_spread))
    error = spread * np.sqrt(1 + 1 / others)
    agreement = float((independent / cases).mean()) if len(cases) else 1.0
    return _Scores(of_others - centred, error, freedom, np.sqrt(variance), agreement)


def _score_limits(scores: _Scores, inside: Mask, usable: Mask, limits: Limits) -> tuple[Matrix, Matrix, Matrix]:
    """Return the limits of the scores of slow and of fast components, and how probable each pair of curves is."""
    count = max(1, int(np.isfinite(scores.slowdown[usable]).sum()))
    whole, places = np.unique(np.floor(scores.freedom), return_inverse=True)
    quantiles = [_quantile(freedom, limits.alpha / count) for freedom in whole.tolist()]
    student = np.array(quantiles)[places].reshape(scores.freedom.shape)
    score = scores.slowdown / scores.error
    sides = [side[side > 0] for side in (score[inside], -score[inside])]
    if min(map(len, sides)) < _LEAST_TAIL:
        return student, student, limits.curves
    fits = [_fits(side) for side in sides]
    joint = fits[0][1][:, None] + fits[1][1][None, :]
    weights = limits.curves * np.exp((joint - joint.max()) * scores.agreement)
    weights /= weights.sum()  # few scores decide little about their curve
    of_sides = []
    for axis, (scales, _) in enumerate(fits):
        share = len(sides[axis]) / max(1, int(inside.sum()))
        peaks = np.where(usable, -score if axis else score, 0.0).max(axis=0, initial=0.0)
        limit = _limit(weights.sum(axis=1 - axis) * share, scales, peaks, count, limits.alpha)
        of_sides.append(np.maximum(student, limit))
    return of_sides[0], of_sides[1], weights


def _limit(weights: Vector, scales: Vector, peaks: Vector, count: int, alpha: float) -> float:
    """Return the score that any of `count` exceeds with the probability `alpha`, or a lower one that several exceed."""
    log_scores, log_tails = _curves()
    shifted = log_scores[None, :] - np.log(scales)[:, None]
    tails = [np.exp(np.interp(at, log_scores, curve)) for at, curve in zip(shifted, log_tails, strict=True)]
    logs = np.log(np.maximum(weights @ np.array(tails) * count, 1e-300))
    # Several need less evidence each: if m exceed a score on average, k do so with a probability of at most mᵏ/k!
    largest = np.sort(peaks[peaks > 1])[::-1][: max(2, int(MOST_SHARE * len(peaks)))]
    numbers = np.arange(1, len(largest) + 1)
    chance = numbers * (np.interp(np.log(largest), log_scores, logs) + math.log(_DOUBT)) - np.cumsum(np.log(numbers))
    is_beyond = logs <= math.log(alpha)
    alone = float(np.exp(log_scores[is_beyond.argmax() if is_beyond.any() else -1]))
    together = largest[chance <= math.log(alpha)]
    return min(alone, float(together.min(initial=math.inf)) * (1 - 1e-9))


def _fits(scores: Vector) -> tuple[Vector, Vector]:
    """Return the scale and the logarithm of the likelihood of each curve for the scores of one side, all positive."""
    freedom, squares = np.array(_FREEDOMS)[:, None], scores[None, :] ** 2
    scale = np.full_like(freedom, squares.mean())
    for _ in range(_FIT_ROUNDS):
        scale = ((freedom + 1) / (freedom + squares / scale) * squares).mean(axis=1, keepdims=True)
    kernel = np.log1p(squares / scale / freedom).mean(axis=1) * (freedom[:, 0] + 1) / 2
    densities = _DENSITIES - np.log(scale[:, 0]) / 2 - kernel
    mean = scores.mean()
    return np.append(np.sqrt(scale[:, 0]), mean), np.append(densities, -np.log(mean) - 1) * len(scores)


@functools.lru_cache(maxsize=4096)
def _quantile(freedom: float, tail: float) -> float:
    return float(stats.student_quantile(np.array([freedom]), 2 * tail)[0])


@functools.cache
def _curves() -> tuple[Vector, Matrix]:
    """Return the logarithms of scores from 1 to 1000, and of the tail of each curve beyond each of them."""
    scores = np.geomspace(1.0, 1000.0, 700)
    students = [np.log(np.maximum(stats.student_tail(scores, np.full_like(scores, f)), 1e-300)) for f in _FREEDOMS]
    return np.log(scores), np.array([*students, -scores])


def curves_of_medians(curves: Matrix) -> Matrix:
    """Return the probabilities of the curves of medians over cases with the probabilities `curves`."""
    of_medians: Matrix = _OF_MEDIANS.T @ curves @ _OF_MEDIANS
    return (1 - _SHARED) * of_medians + _SHARED * PRIORS


def populations(rates: Matrix) -> npt.NDArray[np.intp]:
    """Return for each case the number of components in the slower of two populations; 0 if there is one population."""
    ordered = np.sort(rates, axis=1)  # NaN last
    count = np.isfinite(rates).sum(axis=1, keepdims=True)
    below = np.arange(1, rates.shape[1])[None, :]  # components in the slower population
    above = count - below
    centred = np.nan_to_num(ordered - np.nanmean(np.where(count > 0, ordered, 0.0), axis=1, keepdims=True))
    sums, squares = centred.cumsum(axis=1), (centred**2).cumsum(axis=1)
    low, low_squares = sums[:, :-1], squares[:, :-1]
    high, high_squares = sums[:, -1:] - low, squares[:, -1:] - low_squares
    within = low_squares - low**2 / below + high_squares - high**2 / np.maximum(above, 1)
    spread = np.maximum(np.sqrt(np.maximum(within, 0.0) / np.maximum(count - 2, 1)), LEAST_SPREAD)
    gap = ordered[:, 1:] - ordered[:, :-1]
    limit = np.maximum(-np.log1p(-LEAST_EFFECT), np.interp(count, _SIZES, _GAPS) * spread)
    least = np.maximum(3, np.ceil(MOST_SHARE * count))  # two are suspects
    is_split = (count >= _SIZES[0]) & (below >= least) & (above >= least) & (gap > limit)
    widest = np.where(is_split, gap / spread, 0.0).argmax(axis=1)
    return np.where(is_split.any(axis=1), widest + 1, 0)


def reason_too_few_links(ends: Indices, count: int) -> str:
    """Return why pairs of `count` nodes are too few for a verdict, as a clause; empty if they are enough."""
    if count < LEAST_COMPONENTS:
        return f"{count} nodes are too few for a verdict, which needs at least {LEAST_COMPONENTS}"
    if np.linalg.matrix_rank(_design(ends, count)) < count or len(ends) < count + _LEAST_FREEDOM:
        return f"{len(ends)} pairs do not tell {count} nodes from their links; measure more --rounds"
    return ""


def find_links(ends: Indices, values: Vector, count: int) -> tuple[Outliers, Outliers, float]:
    """Return the outliers among the links and among the nodes, each as one row, and the typical value of a pair.

    `values`, shape (pairs,), are the logarithms of the pairs' rates."""
    slow, slowdowns, limits = _slow_links(ends, values, count)
    is_slow = np.isin(np.arange(len(values)), slow)
    fit = _Fit.of(ends[~is_slow], values[~is_slow], count)
    nobody = np.zeros_like(is_slow)[None, :]
    links = Outliers(slowdowns[None, :], limits[None, :], is_slow[None, :], nobody, np.array([[math.nan]]), PRIORS)
    return links, find(fit.effects[None, :], limits=Limits(spread=_LINK_SPREAD)), 2 * float(np.median(fit.effects))


def _design(ends: Indices, count: int) -> Matrix:
    """Return the matrix of the model, shape (pairs, count): a row for each pair, with a 1 for both of its nodes."""
    design = np.zeros((len(ends), count))
    design[np.arange(len(ends))[:, None], ends] = 1.0
    return design


@dataclass(slots=True)
class _Fit:
    """Least squares of the model, from which pairs can be removed one after the other."""

    ends: Indices
    values: Vector
    effects: Vector
    inverse: Matrix

    @classmethod
    def of(cls, ends: Indices, values: Vector, count: int) -> "_Fit":
        design = _design(ends, count)
        inverse = np.asarray(np.linalg.inv(design.T @ design), dtype=np.float64)
        return cls(ends, values, inverse @ (design.T @ values), inverse)

    def residuals(self) -> tuple[Vector, Vector]:
        """Return the residual and the leverage of every pair, including the removed ones, each of shape (pairs,)."""
        first, second = self.ends.T
        leverages = self.inverse[first, first] + self.inverse[second, second] + 2 * self.inverse[first, second]
        return self.values - self.effects[first] - self.effects[second], leverages

    def remove(self, row: int) -> None:
        """Remove the pair in this row of `ends` from the fit; its leverage must be below 1."""
        residuals, leverages = self.residuals()
        column = self.inverse[:, self.ends[row]].sum(axis=1)
        self.effects = self.effects - column * residuals[row] / (1 - leverages[row])
        self.inverse = self.inverse + np.outer(column, column) / (1 - leverages[row])


def _slow_links(ends: Indices, values: Vector, count: int) -> tuple[Indices, Vector, Vector]:
    """Return the indices of the slow links, and for every link its distance below its prediction and the limit."""
    fit = _Fit.of(ends, values, count)
    removed: list[int] = []
    suspects = 0
    deletions = []
    for _ in range(max(1, int(MOST_SHARE * len(values)))):
        slowdowns, limits = _deletion_residuals(fit, removed)
        deletions.append((slowdowns, limits))
        excess = slowdowns / limits
        excess[removed] = -np.inf
        worst = int(excess.argmax())
        is_finished = len(removed) - suspects > _LOOK_AHEAD or not np.isfinite(excess[worst])
        if is_finished or len(values) - len(removed) - count <= _LEAST_FREEDOM:
            break
        removed.append(worst)
        if excess[worst] > 1:
            suspects = len(removed)
        fit.remove(worst)
    else:
        deletions.append(_deletion_residuals(fit, removed))
    slowdowns, limits = deletions[min(suspects, len(deletions) - 1)]
    return np.array(sorted(removed[:suspects]), dtype=np.intp), slowdowns, limits


def _deletion_residuals(fit: _Fit, removed: list[int]) -> tuple[Vector, Vector]:
    """Return for each link how far it is below the prediction from the other pairs, and the limit of this distance."""
    residuals, leverages = fit.residuals()
    is_in = np.ones(len(residuals), dtype=bool)
    is_in[removed] = False
    free = np.where(is_in, np.maximum(1 - leverages, 1 - _FULL_LEVERAGE), 1.0)
    prediction_errors = residuals / free  # the residual of a removed pair already is one
    freedom = int(is_in.sum()) - len(fit.effects)
    squares = float((residuals[is_in] ** 2).sum())
    without = np.where(is_in, squares - residuals**2 / free, squares) / np.where(is_in, freedom - 1, freedom)
    error = np.sqrt(np.maximum(without, _LINK_SPREAD**2) * np.where(is_in, 1 / free, 1 + leverages))
    tail = 2 * _LINK_ALPHA / len(residuals)
    quantiles = stats.student_quantile(np.array([freedom - 1.0, float(freedom)]), tail)
    limit = np.maximum(-np.log1p(-LEAST_EFFECT), np.where(is_in, *quantiles) * error)
    limit[is_in & (leverages > _FULL_LEVERAGE)] = np.inf
    return -prediction_errors, limit
