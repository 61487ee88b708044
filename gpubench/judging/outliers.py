"""Find the components of a fleet that are slower than the others in a case. Pure functions of arrays.

The rule is the generalized extreme Studentized deviate (Rosner, Technometrics 25, 1983), one-sided: each of the slowest
components is compared with the mean and the standard deviation of all that are faster. A rule that compares with all
components, including the suspect, misses slow components in small fleets, because one of n values lies at most (n −
1)/√n standard deviations from the mean of all. A rule that removes one suspect after the other until none is left
misses slow components if there are several, because they hide each other. The limit is Student's quantile corrected for
the number of comparisons, which is the number of components times the number of cases, so that the share of healthy
fleets in which any component is accused stays below `ALPHA`. tests/studies/fleet_simulation.py has the simulations.

For pairs of nodes the model for the logarithm of a rate is log rate(i, j) = μ + aᵢ + aⱼ + ε. A link is slow by its
deletion residual: how far its rate lies below the prediction from the other pairs of its two nodes, over the standard
error of that prediction (Belsley, Kuh & Welsch, Regression Diagnostics, 1980, section 2.1). The slowest links are
removed one after the other, and the suspects are all links up to the last one that is slow beyond chance (Rosner). Then
the effects aᵢ, fitted without these links, are compared with each other. A median polish finds the same slow nodes and
links, but its residuals have no known distribution: with noise of 2 %, it accused a node or link in 11 to 23 % of
healthy fleets, where this rule does so in 1 % (tests/studies/links_simulation.py)."""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpubench import stats

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
# The share of healthy fleets in which chance accuses a component, by the quantiles. Because several extremes are
# tested, the true share is a quarter larger: in simulations up to 1 % of healthy fleets have an accused component.
ALPHA = 0.0075
LEAST_EFFECT = 0.02  # a smaller slowdown is not worth the repair of a component
LEAST_COMPONENTS = 5  # with fewer components the deviation of the others is too uncertain
LEAST_SPREAD = 0.002  # the standard deviation of a case: components are closer together than this only by chance
_MOST_SHARE = 0.2  # the largest share of components or links that can be suspects; more are another population
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
    """The result of the rule. Every array has one row for each case and one column for each component.

    `detectable` is the smallest slowdown that would have made it a suspect, as a logarithm."""

    slowdown: Matrix
    detectable: Matrix
    is_suspect: Mask


def find(rates: Matrix, errors: Matrix | None = None) -> Outliers:
    """Return for each component in each case its slowdown against the others and whether this makes it a suspect.

    A component that is much faster than the others is not used as a reference for them."""
    errors = np.zeros_like(rates) if errors is None else np.nan_to_num(errors)
    comparisons = max(1, int(np.isfinite(rates).sum()))
    is_fast = _slow_extremes(-rates, errors, comparisons)
    is_suspect = _slow_extremes(np.where(is_fast, np.nan, rates), errors, comparisons)
    slowdown, detectable = _compare_with_references(rates, ~(is_fast | is_suspect), errors, comparisons)
    return Outliers(slowdown, detectable, is_suspect & (slowdown > detectable))


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
    least = np.maximum(2, np.ceil(_MOST_SHARE * count))
    is_split = (count >= _SIZES[0]) & (below >= least) & (above >= least) & (gap > limit)
    widest = np.where(is_split, gap / spread, 0.0).argmax(axis=1)
    return np.where(is_split.any(axis=1), widest + 1, 0)


def _slow_extremes(rates: Matrix, errors: Matrix, comparisons: int) -> Mask:
    """Return a mask of the components that are slower than all faster ones by more than chance and the least effect."""
    order = np.argsort(rates, axis=1)  # NaN last
    ordered = np.take_along_axis(rates, order, axis=1)
    present = np.isfinite(ordered)
    count = present.sum(axis=1, keepdims=True)
    centred = np.nan_to_num(ordered - np.nanmean(np.where(count > 0, ordered, 0.0), axis=1, keepdims=True))
    place = np.arange(rates.shape[1])[None, :]
    faster = count - place - 1
    sums = centred.sum(axis=1, keepdims=True) - centred.cumsum(axis=1)
    squares = (centred**2).sum(axis=1, keepdims=True) - (centred**2).cumsum(axis=1)
    mean, limit = _mean_and_limit(sums, squares, faster, np.take_along_axis(errors, order, axis=1), comparisons)
    most = np.maximum(1, np.floor(_MOST_SHARE * count))
    is_beyond = present & (place < most) & (count >= LEAST_COMPONENTS) & (mean - centred > limit)
    last = np.where(is_beyond.any(axis=1), rates.shape[1] - 1 - is_beyond[:, ::-1].argmax(axis=1), -1)
    is_slow = np.zeros(rates.shape, dtype=bool)
    np.put_along_axis(is_slow, order, place <= last[:, None], axis=1)
    return is_slow


def _compare_with_references(
    rates: Matrix, is_reference: Mask, errors: Matrix, comparisons: int
) -> tuple[Matrix, Matrix]:
    """Return the slowdown of each component against the reference components of the case, and its limit."""
    present = np.isfinite(rates)
    is_reference = is_reference & present
    count = is_reference.sum(axis=1, keepdims=True)
    centre = np.nanmean(np.where(is_reference | (count == 0), rates, np.nan), axis=1, keepdims=True)
    centred = np.where(present, rates - centre, 0.0)
    references = np.where(is_reference, centred, 0.0)
    sums = references.sum(axis=1, keepdims=True) - references
    squares = (references**2).sum(axis=1, keepdims=True) - references**2
    mean, limit = _mean_and_limit(sums, squares, count - is_reference, errors, comparisons)
    is_judged = present & (present.sum(axis=1, keepdims=True) >= LEAST_COMPONENTS)
    return np.where(is_judged, mean - centred, np.nan), np.where(is_judged, limit, np.nan)


def _mean_and_limit(
    sums: Matrix, squares: Matrix, others: npt.NDArray[np.int_], errors: Matrix, comparisons: int
) -> tuple[Matrix, Matrix]:
    """Return for each component the mean of the others, and the smallest slowdown against it that is beyond chance."""
    count = np.maximum(others, 1)
    mean = sums / count
    variance = (squares - count * mean**2) / np.maximum(count - 1, 1)
    spread = np.maximum(np.sqrt(np.maximum(variance, 0.0)), np.maximum(errors, LEAST_SPREAD))
    freedoms, places = np.unique(np.maximum(count - 1, 1).astype(float), return_inverse=True)
    quantiles = np.array(_quantiles(tuple(freedoms.tolist()), comparisons))[places].reshape(count.shape)
    limit: Matrix = np.maximum(-np.log1p(-LEAST_EFFECT), quantiles * np.sqrt(1 + 1 / count) * spread)
    return mean, limit


@functools.lru_cache(maxsize=64)  # the same in each round, and for every case
def _quantiles(freedoms: tuple[float, ...], comparisons: int) -> tuple[float, ...]:
    return tuple(stats.student_quantile(np.array(freedoms), 2 * ALPHA / comparisons).tolist())


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
    links = Outliers(slowdowns[None, :], limits[None, :], is_slow[None, :])
    return links, find(fit.effects[None, :]), 2 * float(np.median(fit.effects))


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
    for _ in range(max(1, int(_MOST_SHARE * len(values)))):
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
    error = np.sqrt(np.maximum(without, LEAST_SPREAD**2) * np.where(is_in, 1 / free, 1 + leverages))
    tail = 2 * _LINK_ALPHA / len(residuals)
    quantiles = stats.student_quantile(np.array([freedom - 1.0, float(freedom)]), tail)
    limit = np.maximum(-np.log1p(-LEAST_EFFECT), np.where(is_in, *quantiles) * error)
    limit[is_in & (leverages > _FULL_LEVERAGE)] = np.inf
    return -prediction_errors, limit
