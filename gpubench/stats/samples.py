"""Compute statistics of samples; each function names its reference. Pure functions of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_MAD_TO_SIGMA = 1.4826  # 1 / Φ⁻¹(3/4): makes the MAD of a normal sample estimate its sigma
_NORMAL_975 = 1.959963984540054  # Φ⁻¹(0.975)
LEAST_FOR_INTERVAL = 6  # with fewer values, no two of them enclose the median with 95 %; their range is used instead
_MOST_NEWTON_STEPS = 10  # one degree of freedom, the farthest from normal, needs eight at 0.27 %; five need three
_SERIAL = 0.5  # up to this correlation of signs, an AR(1) process says how long the correlation lasts
_LEAST_PARTS = 10  # the fewest times that a lag must fit into the values to be considered
_NEARLY = 1e-6  # Newton's method squares the error: the step after one of this size changes nothing
_NORMAL_FREEDOM = 1e6  # Student's t with this number of degrees of freedom is normal to six digits
_log_gamma = np.vectorize(math.lgamma, otypes=[float])


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval from `low` to `high` with its centre, such as a median, in the unit of the data."""

    low: float
    centre: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width as a fraction of the centre; infinite if the centre is 0."""
        return (self.high - self.low) / 2 / abs(self.centre) if self.centre else math.inf


def median(values: Sequence[float]) -> float:
    """Return the sample median; NaN if there are no values or one of them is NaN."""
    return _middle(sorted(values)) if len(values) else math.nan


def _middle(ordered: Sequence[float]) -> float:
    """Return the median of at least one value; the values are sorted, and the result is NaN if one is NaN."""
    count = len(ordered)
    if math.isnan(sum(ordered)):  # sorting does not order NaN
        return float(np.median(ordered))
    return float(ordered[count // 2] if count % 2 else (ordered[count // 2 - 1] + ordered[count // 2]) / 2)


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the quantile at `fraction` in [0, 1], interpolated linearly (Hyndman & Fan type 7); NaN of no values."""
    return float(np.quantile(values, fraction)) if len(values) else math.nan


def noise(values: Sequence[float]) -> float:
    """Return the robust coefficient of variation, a fraction: 1.4826 · MAD / |median| (Rousseeuw & Croux 1993).

    MAD is the median distance from the median. The result is 0 for fewer than two values and for a median of 0."""
    if len(values) < 2:
        return 0.0
    centre = median(values)
    if centre == 0:
        return 0.0
    return _MAD_TO_SIGMA * median([abs(value - centre) for value in values]) / abs(centre)


def serial_inflation(values: Sequence[float]) -> float:
    """Return the factor by which serial correlation widens the variance of the count below the median; 1 for none.

    The values are in the order measured."""
    return _inflation(values, median(values))


def _inflation(values: Sequence[float], centre: float) -> float:
    """Return `serial_inflation` of values whose median is `centre`.

    For an AR(1) process with correlation ρ, the signs of the distances from the median have the correlation
    (2/π)·asin(ρᵏ) at lag k (Kedem, Binary Time Series, 1980), and the factor is 1 + 2·Σ(1 − k/n)·(2/π)·asin(ρᵏ).
    ρ follows from the correlation r at the first lag 1, 2, 4, … at which r ≤ 0.5: at shorter lags a device that
    changes its level every few hundred samples looks the same as one that never returns. r is taken one standard error
    above its bias-corrected estimate, because a stopping rule selects the moments at which it is small by chance."""
    signs = np.sign(np.asarray(values, dtype=float) - centre)
    count, power = len(signs), float(signs @ signs)
    if power == 0:
        return 1.0
    lag, correlation = 1, float(signs[1:] @ signs[:-1]) / power
    while correlation > _SERIAL and count >= 2 * _LEAST_PARTS * lag:
        lag *= 2
        correlation = float(signs[lag:] @ signs[:-lag]) / power
    parts = count / lag
    bound = correlation + (1 + 2 * max(correlation, 0.0)) / parts + 1 / math.sqrt(parts)
    if bound <= 0:
        return 1.0
    rho = math.sin(math.pi / 2 * min(bound, 0.95)) ** (1 / lag)
    lags = np.arange(1, count)
    return 1 + float((4 / math.pi * (1 - lags / count) * np.arcsin(rho**lags)).sum())


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median with its 95 % interval from order statistics, which assumes no distribution.

    The ranks come from the normal approximation of the binomial, n/2 ± 1.96·√n/2, rounded outwards (Le Boudec,
    Performance Evaluation of Computer Systems, 2010, theorem 2.1). From 10 samples on they are widened by the root of
    `serial_inflation`, so the values must be in the order measured. Below 6 samples no pair of order statistics reaches
    95 %, and the whole range is returned; without samples, NaN. Where serial correlation leaves as few independent
    samples, it is the range of the medians of 6 consecutive parts: no single sample says where a median is."""
    data = sorted(values)
    count = len(data)
    if count == 0:
        return Interval(math.nan, math.nan, math.nan)
    if count < LEAST_FOR_INTERVAL:
        return Interval(data[0], _middle(data), data[-1])
    centre = _middle(data)
    inflation = _inflation(values, centre) if count >= 10 else 1.0
    margin = _NORMAL_975 * math.sqrt(count * inflation) / 2
    low = max(math.floor(count / 2 - margin), 1)
    high = min(math.ceil(count / 2 + 1 + margin), count)
    if count / inflation < LEAST_FOR_INTERVAL and count >= LEAST_FOR_INTERVAL**2:
        medians = [float(np.median(part)) for part in np.array_split(np.asarray(values), LEAST_FOR_INTERVAL)]
        return Interval(min(*medians, centre), centre, max(*medians, centre))
    return Interval(data[low - 1], centre, data[high - 1])


def resampled_medians(values: Sequence[float], count: int, rng: np.random.Generator) -> Vector:
    """Return the medians of `count` resamples of the values (Efron, Annals of Statistics 7, 1979), shape (count,).

    There must be at least one value. The medians are drawn directly, so that the cost does not grow with the number of
    values. The k-th smallest of n values drawn with replacement is the value of rank ⌊n·U⌋, where U is the k-th
    smallest of n uniform numbers, with the distribution Beta(k, n − k + 1). The next one lies a share Beta(1, n − k) of
    the way from U to 1 (David and Nagaraja, Order Statistics, 2003, sections 2.3 and 2.5)."""
    ordered = np.sort(np.asarray(values, dtype=float))
    size = len(ordered)
    middle = (size + 1) // 2
    lower = rng.beta(middle, size - middle + 1, count)
    upper = lower if size % 2 else lower + (1 - lower) * rng.beta(1, size - middle, count)
    ranks = (np.minimum((size * uniform).astype(np.int64), size - 1) for uniform in (lower, upper))
    low, high = (ordered[rank] for rank in ranks)
    return np.asarray((low + high) / 2)


def warm_up_length(values: Sequence[float]) -> int:
    """Return how many of the first values belong to a transient: the MSER truncation point.

    It is the d that minimises the standard error of the mean of the remaining values, at least five (White, Simulation
    69(6), 1997). With fewer than ten values it is their number. A d beyond half of the values means that they do not
    show a steady state yet (Hoad, Robinson & Davies, Journal of the Operational Research Society 61, 2010)."""
    least = 5  # fewer values at the end look steady by chance
    if len(values) < 2 * least:
        return len(values)
    data = np.asarray(values, dtype=float)[::-1]
    centre = np.median(data)
    data = np.where(
        np.abs(data - centre) <= 1e-9 * abs(centre), 0.0, data - centre
    )  # differences by rounding are no transient
    counts = np.arange(1, len(data) + 1)
    means = np.cumsum(data) / counts
    squares = np.cumsum(data * data) / counts
    errors = np.maximum(squares - means * means, 0.0) / counts
    best = least + int(np.argmin(errors[least - 1 :]))
    steady = int(np.flatnonzero(errors <= errors[best - 1] * (1 + 1e-9))[-1]) + 1
    return len(data) - max(best, steady)


def is_steady(values: Sequence[float]) -> bool:
    """Return whether warm-up is over: there are at least 10 values, and the transient is shorter than half of them."""
    return len(values) >= 10 and warm_up_length(values) < len(values) // 2


def hodges_lehmann(before: Vector, after: Vector) -> Vector:
    """Return the shift from `before` to `after`: the median of all differences of an `after` and a `before` value.

    It works along the last axis, from (…, n) and (…, m) to (…) (Hodges & Lehmann, Annals of Mathematical Statistics 34,
    1963)."""
    differences = np.asarray(after)[..., :, None] - np.asarray(before)[..., None, :]
    return np.asarray(np.median(differences.reshape(*differences.shape[:-2], -1), axis=-1))


@dataclass(frozen=True, slots=True)
class Welch:
    """The difference of two means (after less before) with its standard error and its degrees of freedom.

    All are arrays of one shape, with an element for each pair of samples."""

    difference: Vector
    error: Vector
    freedom: Vector

    @property
    def margin(self) -> Vector:
        """Half the width of the 95 % interval, in the unit of the difference."""
        return self.error * student_quantile(self.freedom)

    @property
    def p(self) -> Vector:
        """The two-sided probability of a difference at least this large if the means are equal."""
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where(self.difference == 0, 0.0, np.abs(self.difference) / self.error)
        return student_tail(score, self.freedom)


def welch(before: Vector, after: Vector) -> Welch:
    """Return the difference of the means of two samples with unequal variances (Welch, Biometrika 34, 1947).

    It works along the last axis, from (…, n) and (…, m) to (…), with at least two values in each sample. The degrees of
    freedom follow Satterthwaite (Biometrics Bulletin 2, 1946); they are infinite if no value varies."""
    return _unequal(_moments(before, 0), _moments(after, 0))


def trimmed_welch(before: Vector, after: Vector) -> tuple[Welch, Vector]:
    """Return the difference of the trimmed means by Yuen's test (Biometrika 61, 1974), and the pooled standard error.

    It has the shapes of `welch`. From eight values on, a fifth of a sample is trimmed at each end, so that one bad
    value in ten neither moves the mean nor widens the interval; shorter samples are not trimmed. The pooled error is
    Student's, for two samples that share one deviation, with h + k - 2 degrees of freedom for h and k values left."""
    first, second = (_moments(side, trimmed_count(np.shape(side)[-1])) for side in (before, after))
    pooled = (first.squares + second.squares) / (first.left + second.left - 2)
    return _unequal(first, second), np.asarray(np.sqrt(pooled * (1 / first.left + 1 / second.left)))


def trimmed_count(count: int) -> int:
    """Return how many of `count` values `trimmed_welch` trims at each end."""
    return count // 5 if count >= 8 else 0


class _Moments(NamedTuple):
    """The trimmed mean of samples, the squared deviations of the winsorised values, and the number of values left."""

    mean: Vector
    squares: Vector
    left: int


def _moments(sample: Vector, trimmed: int) -> _Moments:
    values = np.asarray(sample, dtype=float)
    left = values.shape[-1] - 2 * trimmed
    if not trimmed:
        return _Moments(values.mean(axis=-1), values.var(axis=-1) * left, left)
    inner = np.sort(values, axis=-1)[..., trimmed : trimmed + left]
    winsorised = np.concatenate((*[inner[..., :1]] * trimmed, inner, *[inner[..., -1:]] * trimmed), axis=-1)
    squares, whole = (part.var(axis=-1) * part.shape[-1] for part in (winsorised, values))
    return _Moments(inner.mean(axis=-1), np.where(squares > 0, squares, whole), left)  # of quantised values, all vary


def _unequal(before: _Moments, after: _Moments) -> Welch:
    """Return Welch's difference from the moments of both samples."""
    shares = [side.squares / (side.left * (side.left - 1)) for side in (before, after)]
    variance = shares[0] + shares[1]
    single = shares[0] ** 2 / (before.left - 1) + shares[1] ** 2 / (after.left - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(variance > 0, variance**2 / single, np.inf)
    return Welch(after.mean - before.mean, np.sqrt(variance), freedom)


def student_tail(score: Vector, freedom: Vector) -> Vector:
    """Return P(|T| ≥ score) of Student's t for arrays of scores and degrees of freedom that broadcast together.

    It is I_x(ν/2, 1/2) at x = ν/(ν + t²) (NIST DLMF 8.17; Abramowitz & Stegun 26.7.1)."""
    freedom = np.minimum(np.asarray(freedom, dtype=float), _NORMAL_FREEDOM)
    square = np.asarray(score, dtype=float) ** 2
    with np.errstate(invalid="ignore"):
        x = np.where(np.isinf(square), 0.0, freedom / (freedom + square))
    return _beta_ratio(x, freedom / 2)


def student_quantile(freedom: Vector, tail: float = 0.05) -> Vector:
    """Return the t that |T| exceeds with the probability `tail`, for an array of degrees of freedom.

    An expansion about the normal quantile (Abramowitz & Stegun 26.7.5) is refined by Newton's method on
    `student_tail`, which is convex, so that the method converges from below."""
    freedom = np.minimum(np.asarray(freedom, dtype=float), _NORMAL_FREEDOM)
    scale = np.exp(_log_gamma((freedom + 1) / 2) - _log_gamma(freedom / 2)) / np.sqrt(freedom * math.pi)
    terms = enumerate(_expansion(NormalDist().inv_cdf(1 - tail / 2)))
    quantile = sum((term / freedom**power for power, term in terms), np.zeros_like(freedom))
    for _ in range(_MOST_NEWTON_STEPS):
        density = scale * (1 + quantile**2 / freedom) ** (-(freedom + 1) / 2)
        step = (student_tail(quantile, freedom) - tail) / (2 * density)
        quantile = quantile + step
        if np.all(np.abs(step) <= _NEARLY * quantile):
            break
    return quantile


def _expansion(z: float) -> tuple[float, ...]:
    """Return the coefficients of Student's quantile in ascending powers of 1/ν, about the normal quantile `z`."""
    return (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )


def _beta_ratio(x: Vector, a: Vector) -> Vector:
    """Return the regularised incomplete beta function I_x(a, 1/2) by its continued fraction (NIST DLMF 8.17.22)."""
    b = 0.5
    turned = x > (a + 1) / (a + b + 2)  # the fraction converges on the other side: I_x(a, b) = 1 - I_{1-x}(b, a)
    parts = (np.where(turned, b, a), np.where(turned, a, b), np.where(turned, 1 - x, x))
    first, second, at = (part[()] for part in parts)  # scalars of one value, which are ten times as fast as arrays
    with np.errstate(divide="ignore"):
        log_front = first * np.log(at) + second * np.log1p(-at) - np.log(first)
    front = np.exp(log_front - _log_gamma(a) - math.lgamma(b) + _log_gamma(a + b))
    ratio = front / _beta_fraction(at, first, second)
    return np.asarray(np.clip(np.where(turned, 1 - ratio, ratio), 0.0, 1.0))


def _beta_fraction(x: Vector, a: Vector, b: Vector) -> Vector:
    """Return 1 + d₁/(1 + d₂/(1 + …)) of DLMF 8.17.22 for arrays of one shape, evaluated from its end."""
    continued: Vector | float = 1.0
    for term in range(40, 0, -1):
        m, odd = divmod(term, 2)
        if odd:
            share = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            share = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        continued = 1 + share / continued
    return np.asarray(continued)


def false_discovery(p: Sequence[float]) -> Vector:
    """Return the q-value of each p-value: the share of chance findings among all that are at least as convincing.

    The method is by Benjamini & Hochberg, Journal of the Royal Statistical Society B 57, 1995, in its adjusted form.
    The result has the order of `p`, shape (n,)."""
    p_values = np.asarray(p, dtype=float)
    order = np.argsort(p_values)[::-1]
    ranks = np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum.accumulate(np.minimum(p_values[order] * len(p_values) / ranks, 1.0))
    return adjusted


def is_drawable(value: float) -> bool:
    """Return whether an axis can show a value: it is finite, and no tick around it overflows a float."""
    return value == 0 or 1e-100 < abs(value) < 1e100
