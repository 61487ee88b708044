"""Numbers as a person reads them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.base import units


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0B"),
        (1, "1B"),
        (1000, "1000B"),
        (1536, "1536B"),
        (96 * 1024, "96KiB"),
        (1024 * 1024 + 1, "1048577B"),
        (2**30, "1GiB"),
        (3 * 2**41, "6TiB"),
        (2**60, "1048576TiB"),
    ],
)
def test_a_size_in_a_case_id_is_exact_in_its_largest_binary_unit(number, text):
    assert units.size(number) == text


@given(st.integers(min_value=0, max_value=2**62))
def test_two_sizes_never_share_a_text(number):
    text = units.size(number)
    digits = text.rstrip("BKMGTi")
    assert int(digits) * 1024 ** ("", "K", "M", "G", "T").index(text[len(digits) :].rstrip("iB")) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [(139.8 * 2**30, "139.8 GiB"), (0, "0 B"), (1023, "1023 B"), (1024, "1.000 KiB"), (-(2**20), "-1.000 MiB")],
)
def test_a_size_for_reading_is_rounded(number, text):
    assert units.round_size(number) == text
    assert units.quantity(number, "B") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.000"),
        (12.3456, "12.35"),
        (-12.3456, "-12.35"),
        (9.9996, "10.00"),
        (0.99996, "1.000"),
        (999.96, "1000"),
        (123456.7, "123457"),
        (0.000123456, "0.0001235"),
        (0.0000123456, "1.235e-05"),
        (12345678.0, "1.235e+07"),
        (math.nan, "n/a"),
        (-math.inf, "n/a"),
    ],
)
def test_four_significant_digits_stay_four_where_rounding_adds_one(value, text):
    assert units.significant(value) == text


@given(st.floats(min_value=1e-4, max_value=9e6))
def test_a_text_is_within_half_of_its_last_digit(value):
    assert float(units.significant(value)) == pytest.approx(value, rel=5.01e-4)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4213e9, "B/s", "4213 GB/s"),
        (9.9e12, "B/s", "9900 GB/s"),
        (1.2e13, "B/s", "12.00 TB/s"),
        (9_999_960_000_000, "B/s", "10.00 TB/s"),
        (1e8, "B/s", "0.1000 GB/s"),
        (1.258e8, "message/s", "125.8 M message/s"),
        (993_000.0, "message/s", "993000 message/s"),
        (2.5e9, "token/s", "2.500 G token/s"),
        (5e7, "B/s", "50.00 MB/s"),
        (341.2e-9, "s", "341.2 ns"),
        (2.5e-6, "s", "2.500 µs"),
        (5e-10, "s", "0.5000 ns"),
        (785e12, "FLOP/s", "785.0 TFLOP/s"),
        (999.96e9, "FLOP/s", "1.000 TFLOP/s"),
        (1.98e9, "Hz", "1.980 GHz"),
        (-2e9, "B/s", "-2.000 GB/s"),
        (65, "°C", "65.00 °C"),
        (3, "", "3.000"),
        (0, "B/s", "0 B/s"),
        (math.nan, "s", "n/a s"),
    ],
)
def test_a_quantity_has_the_prefix_that_reads_best(value, unit, text):
    assert units.quantity(value, unit) == text


def test_axes_percentages_and_bounds_have_the_unit_that_they_need():
    assert units.scale(4.2e12, "B/s") == (1e9, "GB/s")
    assert units.scale(4.2e13, "B/s") == (1e12, "TB/s")
    assert units.scale(300.0, "°C") == (1.0, "°C")
    assert (units.axis_label("size_bytes"), units.axis_label("dtype")) == ("size", "dtype")
    shown = [("size_bytes", 2**30), ("size", 2**30), ("dtype", "float32"), ("ratio", 0.5), ("data_bytes", "all")]
    assert [units.axis_text(*one) for one in shown] == ["1GiB", "1073741824", "float32", "0.5", "all"]
    assert (units.percent(0.8734), units.percent(1.0, 0)) == ("87.3 %", "100 %")
    assert units.interval(89.69e6, 100.6e6, "B/s", 95.01e6) == "89.69 – 100.6 MB/s"
    assert units.interval(4198e9, 4221e9, "B/s", 4210e9) == "4198 – 4221 GB/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.85, "850 ms"),
        (12.4, "12.4 s"),
        (60, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_a_duration_is_written_in_the_units_a_person_would_use(seconds, text):
    assert units.duration(seconds) == text
