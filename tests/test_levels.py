"""The levels of a staircase, their boundaries and the intervals of those."""

import numpy as np
import pytest

from gpubench.analysis.views.staircases import levels

KIB, MIB = 1024, 2**20


def sizes(per_octave, first=10, last=33):
    """Return a logarithmic grid of working sets, 1 KiB to 8 GiB."""
    return [2 ** (first + step / per_octave) for step in range((last - first) * per_octave + 1)]


def staircase(grid, caches, heights, softness=0.0):
    """Return the mean latency of rings over caches that miss, beyond their size, in proportion to the excess."""
    latencies = []
    for size in grid:
        height = heights[0]
        for cache, low, high in zip(caches, heights, heights[1:], strict=False):
            missed = min(max(size / cache - 1, 0.0) / softness, 1.0) if softness else float(size > cache)
            height += missed * (high - low)
        latencies.append(height)
    return latencies


def noisy(values, share, seed=1):
    """Return the same values with normal noise of this relative deviation."""
    return (np.array(values) * np.exp(share * np.random.default_rng(seed).standard_normal(len(values)))).tolist()


H200 = [256 * KIB, 60 * MIB], [16.2, 141.8, 337.0]


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.02])
@pytest.mark.parametrize("softness", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("per_octave", [2, 4, 8, 16])
def test_each_level_is_found_and_each_cache_lies_in_its_boundarys_interval(per_octave, softness, noise):
    grid = sizes(per_octave)
    caches, heights = H200
    found_levels = levels(grid, noisy(staircase(grid, caches, heights, softness), noise))
    assert [level.height.centre for level in found_levels] == pytest.approx(heights, rel=0.015)
    for level, cache in zip(found_levels, caches, strict=False):
        # where a ramp begins with a small slope, its first points differ from the level by less than the noise
        reach = 2 ** (1.01 / per_octave) if softness < 2 or noise < 0.02 else 1.3
        assert level.end.low / reach <= cache <= level.end.high * reach
        assert level.end.centre == pytest.approx(cache, rel=0.13 if per_octave >= 4 else 0.4)
    assert found_levels[-1].end is None


def test_a_boundary_lies_at_a_clean_knee_or_where_a_ramp_leaves_its_level():
    grid = [2.0**power for power in range(10, 30)]
    first, second = levels(grid, [10.0 if size <= 2**18 else 100.0 for size in grid])
    assert (first.end.low, first.end.high) == (2**18, 2**19)
    assert first.end.centre == pytest.approx(2**18.5)
    assert (grid[first.last], grid[second.first]) == (2**18, 2**19)
    grid = sizes(4)
    heights = [10.0 * max(1.0, size / (300 * KIB)) for size in grid]
    heights = [min(height, 200.0) for height in heights]
    first, second = levels(grid, heights)
    assert first.end.centre == pytest.approx(300 * KIB, rel=1e-6)
    assert second.height.centre == 200.0
    grid = sizes(4, 10, 22)
    (level,) = levels(grid, [10.0 * max(1.0, size / (300 * KIB)) for size in grid])
    assert level.end.centre == pytest.approx(300 * KIB, rel=1e-6)


def test_a_cache_in_two_partitions_has_no_knee_but_a_long_ramp():
    grid = sizes(8)
    near, far = 30 * MIB, 60 * MIB
    heights = []
    for size in grid:
        in_near, in_cache = min(1.0, near / size), min(1.0, far / size)
        heights.append(142.0 * in_near + 220.0 * (in_cache - in_near) + 337.0 * (1 - in_cache))
    first, *rest = levels(grid, noisy(heights, 0.003))
    assert first.height.centre == pytest.approx(142.0, rel=0.01)
    assert 28 * MIB < first.end.centre < 33 * MIB, "what leaves the level is the near partition, not the whole cache"
    assert rest[-1].height.centre == pytest.approx(337.0, rel=0.02)


@pytest.mark.parametrize(
    ("grid", "height", "count"),
    [
        (sizes(4, 27, 36), lambda size: 333.0 * 1.012 ** np.log2(size / 2**27), 1),  # a slight slope
        (sizes(4, 10, 20), lambda size: 33.0 if size == 2**14.25 else 30.0, 1),  # an outlier
        (sizes(4, 10, 20), float, 0),  # a slope everywhere
        ([], float, 0),
        ([1024.0], lambda size: 16.0, 0),
        ([1024.0, 4096.0], lambda size: 16.2 + size / 1e5, 1),  # two octaves apart
        ([1024.0, 1536.0], lambda size: 16.2, 0),
        ([1024.0, 1280.0, 1536.0], lambda size: 16.2, 1),  # three are one over half an octave
    ],
)
def test_a_flat_curve_is_one_level_without_an_end(grid, height, count):
    found = levels(grid, [height(size) for size in grid])
    assert [(level.first, level.last, level.end) for level in found] == [(0, len(grid) - 1, None)] * count


def test_a_level_spans_at_most_a_factor_of_one_and_a_half_even_with_wide_intervals():
    """A loaded host measured rings of 1 KiB to 1 GiB with intervals so wide that one level went from 1.4 to 201 ns."""
    grid = [2.0**power for power in range(10, 31)]
    heights = [1.4, 1.4, 1.4, 1.4, 1.4, 1.4, 4, 4, 4.5, 5, 7, 20, 20, 21, 40, 60, 100, 150, 190, 201, 201]
    found_levels = levels(grid, heights, [20.0] * len(grid))
    spans = [
        max(heights[level.first : level.last + 1]) / min(heights[level.first : level.last + 1])
        for level in found_levels
    ]
    assert max(spans) <= 1.5
    assert [level.height.centre for level in found_levels][:2] == [1.4, 4.0]
    assert found_levels[-1].height.centre > 150


def test_boundaries_are_found_only_where_the_intervals_allow():
    # `latency/chase` of a loaded host: 380 ns among rings of 132 ns, MiB and ns.
    curve = [(48, 126.8), (64, 131.5), (72, 131.0), (80, 379.5), (96, 381.0), (128, 132.9), (160, 134.9), (192, 135.7)]
    found_levels = levels([size * MIB for size, _ in curve], [height for _, height in curve])
    assert all(not level.first <= 3 <= level.last for level in found_levels if level.height.centre < 200)
    grid = sizes(4)
    heights = staircase(grid, [MIB], [100.0, 150.0], 4.0)
    sure, unsure = levels(grid, heights), levels(grid, heights, [0.1] * len(grid))
    assert sure[0].end.high / sure[0].end.low < unsure[0].end.high / unsure[0].end.low


def test_the_dense_curve_of_a_real_h200_has_the_near_and_the_far_partition_of_its_l2():
    """`latency/chase`, quick, of an H200 in November 2026: KiB and ns."""
    near = [(size, 16.23) for size in (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 208, 224, 240)]
    ramp = [(256, 47.6), (272, 82.7), (288, 112.9), (304, 124.9), (320, 134.0), (384, 138.9)]
    cache = [(size, 142.2) for size in (512, 768, 1024, 1536, 2048, 4096, 8192, 16384)]
    mib = [
        *[(24, 142.6), (26, 142.6), (28, 149.5), (30, 170.0), (32, 241.5), (36, 265.4), (40, 266.5), (44, 267.4)],
        *[(48, 266.8), (52, 267.0), (56, 267.4), (60, 302.7), (64, 345.4), (72, 346.1), (80, 345.7), (96, 345.8)],
        *[(128, 346.4), (256, 346.8), (512, 349.3), (1024, 349.9), (4096, 351.2), (16384, 351.5), (65536, 351.7)],
    ]
    curve = [*near, *ramp, *cache, *[(1024 * size, height) for size, height in mib]]
    found_levels = levels([size * KIB for size, _ in curve], [height for _, height in curve])
    assert [round(level.height.centre) for level in found_levels] == [16, 142, 267, 347]
    first, near_half, l2, _ = found_levels
    assert first.end.low == 240 * KIB
    assert first.end.high == 256 * KIB, "the size of the array that L1 shares with shared memory"
    assert 26 * MIB <= near_half.end.centre <= 28 * MIB
    assert l2.end.centre == pytest.approx(60 * MIB, rel=0.05)
