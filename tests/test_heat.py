"""A map of shades: what its strokes leave visible is the shade of each value."""

import re

import numpy as np
import pytest
from _modules import room_module
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

HEAT = room_module("reports", "_matrix")


def painted(picture, shape):
    """Return the shade of each cell, which is that of the last stroke over it; -1 without one."""
    shades = np.full(shape, -1)
    for path, index in re.findall(r'<path d="([^"]*)" class="run h(\d)"', picture):
        row = column = 0
        for word, first, second in re.findall(r"([Mmh])(\d+)(?: (\d+))?", path):
            if word == "M":
                column, row = int(first), int(second)
            elif word == "m":
                column += int(first)
            else:
                shades[row, column : column + int(first)] = int(index)
                column += int(first)
    return shades


@given(arrays(float, (5, 9), elements=st.one_of(st.floats(-1e3, 1e3), st.just(float("nan")))))
def test_each_cell_shows_the_shade_of_its_value_and_a_missing_value_has_none(values):
    scale = (-500.0, 700.0)
    heat = HEAT.Heat(tuple("abcde"), tuple("abcdefghi"), values, "s")
    picture = str(HEAT.heat_map(heat, "across", "down", "words", scale))
    expected = [[-1 if value != value else HEAT.shade(value, *scale) for value in row] for row in values.tolist()]
    assert painted(picture, values.shape).tolist() == expected


@pytest.mark.parametrize(("value", "shade"), [(-9.0, 0), (0.0, 0), (0.999, 6), (1.0, 6), (5.0, 6), (0.5, 3)])
def test_a_shade_is_a_seventh_of_the_scale_and_values_beyond_it_have_the_outer_shades(value, shade):
    assert HEAT.shade(value, 0.0, 1.0) == shade
    assert HEAT.shade(value, 1.0, 1.0) == HEAT.SHADES // 2, "all values are equal"
