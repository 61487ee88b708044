"""Compute statistics of samples: medians and their intervals, noise, warm-up, t-tests, change points.

Pure functions of numbers. Each names the paper or book that it is taken from, and the tests compare it with SciPy.
Nothing here knows what a case or a counter is."""

from gpubench.stats.samples import (
    LEAST_FOR_INTERVAL,
    Interval,
    Vector,
    Welch,
    false_discovery,
    hodges_lehmann,
    is_drawable,
    is_steady,
    median,
    median_interval,
    noise,
    quantile,
    resampled_medians,
    serial_inflation,
    student_quantile,
    student_tail,
    trimmed_count,
    trimmed_welch,
    warm_up_length,
    welch,
)
