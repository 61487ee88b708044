"""The shares of a figure: of the specification, of the peak at the measured clocks, of the best in the run."""

import dataclasses
from pathlib import Path

import _make as make
import pytest

from gpubench.analysis import peaks
from gpubench.analysis.figure import Energy, Figure, NoEnergy
from gpubench.analysis.summary import Summary
from gpubench.knowledge import hardware
from gpubench.model import Work, store

RECORDINGS = Path(__file__).parent / "recordings"
SM = make.counter("nvml.clock.sm", "Hz", "gauge", 0.1, "nvidia-smi --query-gpu=clocks.sm")
MEMORY = make.counter("nvml.clock.memory", "Hz", "gauge", 0.1, "nvidia-smi --query-gpu=clocks.mem")
H200 = make.device(units=132, details=(("memory.bus_bits", "6016"),))
COUNTERS = (SM, MEMORY, make.ENERGY)


def product(tflops=684.0, limit="tensor.bfloat16", seconds=1e-3, **fields):
    """Return a series of one rate."""
    work = Work(flops=tflops * 1e12 * seconds)
    return make.timing(*(seconds,) * 3, work=work, quantity="flops", limit=limit, **fields)


def summed(*results, of=H200, at=(0.0, 1.0), **columns):
    """Return the summary of these results with the clocks given, read at these times."""
    columns = {"clock.sm": (1.4e9, 1.6e9), "clock.memory": (3.201e9, 3.201e9), **columns}
    sampled = make.samples(at, of.id, **{name: values for name, values in columns.items() if values})
    return Summary(make.run(*results, sampled=[sampled], facts=make.facts(of), counters=COUNTERS))


def test_both_directions_of_the_host_link_have_the_same_peak():
    up, down = (hardware.peak(H200, limit) for limit in ("link.h2d", "link.d2h"))
    assert up == down
    assert up is not None
    assert "PCI Express" in up.source


def test_a_product_has_three_shares_each_with_its_peak():
    result = make.result(product(), window=(0.0, 1.0))
    (row,) = summed(result).rows()
    spec, clock, best = row.figure.shares
    assert (spec.basis, clock.basis, best.basis) == peaks.BASES[:3]
    assert spec.fraction == pytest.approx(684 / 989)
    assert clock.peak == pytest.approx(132 * 4096 * 1.5e9), "the mean of the clocks in its window"
    assert clock.fraction == pytest.approx(684e12 / (132 * 4096 * 1.5e9))
    assert clock.source.startswith("132 compute units × 4096 per clock × 1.500 GHz, the mean clock during the case")
    assert (best.fraction, best.peak) == (pytest.approx(1.0), pytest.approx(684e12))
    assert clock.text == "84.3 % of tensor.bfloat16 peak (measured clock)"


def test_the_peak_of_memory_is_its_clock_times_its_bus_width():
    result = make.result(make.timing(1e-3, moved=4.604e9, limit="dram"), window=(0.0, 1.0))
    share = summed(result).rows()[0].figure.share_of("clock")
    assert share.peak == pytest.approx(2 * 3.201e9 * 6016 / 8)
    assert share.fraction == pytest.approx(0.9563, abs=1e-4)


def test_the_best_of_a_run_has_the_same_limit_and_is_no_early_sample():
    series = product(600), dataclasses.replace(product(900), name="early"), product(50, "tensor.float64")
    (row,) = summed(make.result(series[0], *series[1:], window=(0.0, 1.0))).rows()
    assert row.figure.share_of("best").fraction == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("of", "columns", "window"),
    [
        (H200, {"clock.sm": None}, (0.0, 1.0)),
        (H200, {"clock.sm": (None, None)}, (0.0, 1.0)),
        (H200, {}, (5.0, 6.0)),
        (dataclasses.replace(H200, arch="sm_53"), {}, (0.0, 1.0)),
        (dataclasses.replace(H200, units=0), {}, (0.0, 1.0)),
    ],
    ids=["no-counter", "unread", "no-reading-in-the-window", "unknown-architecture", "unknown-units"],
)
def test_without_a_measured_clock_or_a_sourced_rate_there_is_no_corrected_share(of, columns, window):
    figure = summed(make.result(product(), window=window), of=of, **columns).rows()[0].figure
    assert [share.basis for share in figure.shares] == ["spec", "best"]
    assert [round(share.fraction, 3) for share in figure.shares] == [0.692, 1.0]


def test_a_limit_without_a_data_sheet_value_has_a_share_of_its_peak_at_the_clock():
    result = make.result(make.timing(1e-3, moved=2e10, limit="shared"), window=(0.0, 1.0))
    figure = summed(result).rows()[0].figure
    assert figure.share_text == f"{2e13 / (132 * 128 * 1.5e9) * 100:.1f} % of shared peak (measured clock)"


@pytest.mark.parametrize("bits", ["", "many"])
def test_memory_without_a_known_bus_has_no_corrected_share(bits):
    of = dataclasses.replace(H200, details=(("memory.bus_bits", bits),) if bits else ())
    result = make.result(make.timing(1e-3, moved=4e9, limit="dram"), window=(0.0, 1.0))
    assert summed(result, of=of).rows()[0].figure.share_of("clock") is None


def test_shares_of_replicates_are_joined_basis_by_basis():
    shares = [summed(make.result(product(rate), window=(0.0, 1.0))).rows()[0].figure for rate in (500, 700, 600)]
    joined = Figure.over_replicates([shares[0], dataclasses.replace(shares[1], shares=()), shares[2]])
    assert joined.share_of("spec").fraction == pytest.approx(550 / 989)
    assert joined.share_of("clock").fraction == pytest.approx(550e12 / (132 * 4096 * 1.5e9))
    assert peaks.shares_over_replicates([(), ()]) == ()


# At this clock the rate in the table gives the data sheet's figure: 1.83 GHz for Hopper's tensor cores but
# 1.98 for its double and single precision, 1.41 for Ampere, 2.1 for CDNA 3.
SHEET_CLOCKS = {
    "NVIDIA H200": ("sm_90", 132, {"tensor.float64": 1.98e9, "float32": 1.98e9, "float64": 1.98e9}, 1.83e9),
    "NVIDIA A100-SXM4-80GB": ("sm_80", 108, {}, 1.41e9),
    "NVIDIA B200": ("sm_100", 148, {"tensor.float64": 1.965e9, "float32": 1.965e9, "float64": 1.965e9}, 1.855e9),
    "AMD Instinct MI300X": ("gfx942", 304, {}, 2.1e9),
    "AMD Instinct MI250X": ("gfx90a", 110, {}, 1.7e9),
    "AMD Instinct MI325X": ("gfx942", 304, {}, 2.1e9),
    "AMD Instinct MI350X": ("gfx950", 256, {}, 2.2e9),
    "AMD Instinct MI355X": ("gfx950", 256, {}, 2.4e9),
    "NVIDIA L40S": ("sm_89", 142, {}, 2.52e9),
    "NVIDIA GeForce RTX 4090": ("sm_89", 128, {}, 2.52e9),
}


@pytest.mark.parametrize("name", SHEET_CLOCKS)
def test_the_rate_per_compute_unit_and_clock_gives_the_data_sheets_peak_at_its_clock(name):
    arch, units, clocks, usual = SHEET_CLOCKS[name]
    device = make.device(name=name, arch=arch, units=units)
    limits = [limit for limit in hardware.per_clock_limits(arch) if hardware.peak(device, limit)]
    assert limits
    for limit in limits:
        corrected = units * hardware.per_clock(device, limit).value * clocks.get(limit, usual)
        assert corrected == pytest.approx(hardware.peak(device, limit).value, rel=0.02), limit


@pytest.mark.parametrize(
    ("arch", "bits", "clock_hz", "rate"),
    [("sm_80", 5120, 1.593e9, 2.039e12), ("sm_90", 5120, 2.619e9, 3.35e12), ("sm_90", 6016, 3.201e9, 4.8e12)],
)
def test_the_width_and_clock_of_a_memory_give_the_data_sheet(arch, bits, clock_hz, rate):
    device = make.device(arch=arch, details=(("memory.bus_bits", str(bits)),))
    assert hardware.bytes_per_memory_clock(device).value * clock_hz == pytest.approx(rate, rel=0.005)


def test_sums_of_both_directions_and_algorithm_bandwidths_have_no_share_of_a_link():
    """The sum would be 172.8 % of spec, and as the best of the run it would halve every other share of the link."""
    one_way = make.timing(1e-3, work=Work(payload=389e6), quantity="payload", limit="link.peer")
    both = dataclasses.replace(one_way, name="sum", role="derived", work=Work(payload=2 * 389e6))
    algbw = dataclasses.replace(one_way, name="algbw", role="derived", work=Work(payload=300e6))
    result = make.result(one_way, both, algbw)
    summary = summed(result)
    shares = [[round(share.fraction, 3) for share in summary.figure(result, series).shares] for series in result.series]
    assert shares == [[0.864, 1.0], [], []]


def test_a_derived_series_that_counts_sectors_has_a_share_of_the_memory_peak():
    chunks = make.timing(1e-3, work=Work(payload=1e9), quantity="payload", limit="dram")
    sectors = dataclasses.replace(chunks, name="sectors", role="derived", work=Work(payload=4e9))
    result = make.result(chunks, sectors)
    assert summed(result).figure(result, sectors).share_of("best").fraction == 1.0


def test_no_series_of_a_recorded_run_between_two_gpus_is_above_its_peak():
    run = store.read_run(RECORDINGS / "whole/h200x2.jsonl.gz")
    summary = Summary(run)
    assert [row.result.case.id for row in summary.rows() if row.impossible] == []
    above = [
        f"{result.case.id} {series.label} {share.text}"
        for result in run.results
        for series in result.series
        for share in summary.figure(result, series).shares
        if share.fraction > 1
    ]
    assert above == []


@pytest.mark.parametrize(
    ("tflops", "clocks", "text"),
    [
        (820, {}, ""),
        (835, {}, "hot: 103.0 % of tensor.bfloat16 peak (measured clock)"),
        (1030, {"clock.sm": (1.98e9, 1.98e9)}, ""),  # it boosts beyond the clock of its data sheet
        (1030, {"clock.sm": None}, ""),  # without a measured clock the data sheet leaves room for a boost
        (1240, {"clock.sm": None}, "hot: 125.4 % of tensor.bfloat16 peak (data sheet)"),
    ],
)
def test_a_share_above_102_percent_of_the_peak_is_labelled(tflops, clocks, text):
    early = dataclasses.replace(product(9000), role="early")  # has no share of the peak at the settled clock
    (row,) = summed(make.result(product(tflops), early, window=(0.0, 1.0)), **clocks).rows()
    assert row.labels == (("above-peak",) if text else ())
    assert [share.text for share in row.impossible] == ([text] if text else [])


def test_a_link_has_no_clock_to_boost():
    series = make.timing(1e-3, work=Work(payload=460e6), quantity="payload", limit="link.peer")
    (row,) = summed(make.result(series)).rows()
    assert [share.text for share in row.impossible] == ["hot: 102.2 % of link.peer peak (data sheet)"]


def test_an_impossible_figure_is_not_taken_as_the_best_of_the_run():
    wrong = make.result(product(1600), of=make.case("wrong"), window=(0.0, 1.0))
    right = make.result(product(600), of=make.case("right"), window=(0.0, 1.0))
    rows = summed(wrong, right).rows()
    assert [row.figure.share_of("best").fraction for row in rows] == [pytest.approx(1600 / 600), pytest.approx(1.0)]


@pytest.mark.parametrize(
    ("name", "memory_gb", "dram"),
    [
        ("NVIDIA H100 80GB HBM3", 85, 3.35e12),
        ("NVIDIA H100 80GB HBM3", 0, 3.35e12),
        ("NVIDIA H100", 68, None),
        ("NVIDIA H100 64GB HBM2", 0, None),
        ("NVIDIA H100 SXM5 96GB", 0, None),
        ("NVIDIA H100", 102, None),
        ("NVIDIA B200", 191, 7.7e12),
        ("NVIDIA GB200", 191, 8e12),
        ("NVIDIA L40S", 48, 864e9),
        ("NVIDIA L40", 48, 864e9),
        ("NVIDIA GeForce RTX 4090", 25, 1.008e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 17, None),
        ("NVIDIA GeForce RTX 5090", 34, 1.792e12),
        ("NVIDIA GeForce RTX 5090 D", 34, None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 102, 1.792e12),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 102, None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 102, 1.597e12),
        ("AMD Instinct MI250X", 68, 1.6384e12),
        ("AMD Instinct MI325X", 275, 6e12),
        ("AMD Instinct MI350X", 309, 8e12),
        ("AMD Instinct MI355X", 309, 8e12),
        ("AMD Instinct MI350P", 155, None),
        ("AMD Instinct MI300A", 137, 5.325e12),
    ],
)
def test_a_board_has_the_memory_bandwidth_of_its_data_sheet_or_none(name, memory_gb, dram):
    peak = hardware.peak(make.device(name=name, memory_bytes=int(memory_gb * 1e9)), "dram")
    assert (peak and peak.value) == dram


def part(compute, memory="NPS1", units=38, name="AMD Instinct MI300X"):
    """Return a device of a split card."""
    return make.device("rocm:0", name, arch="gfx942", units=units, details=details(compute, memory))


def details(compute, memory):
    return (("partition.compute", compute), ("partition.memory", memory))


@pytest.mark.parametrize(
    ("compute", "units", "share"), [("CPX", 38, 8), ("QPX", 76, 4), ("DPX", 152, 2), ("SPX", 304, 1)]
)
def test_a_device_of_a_split_card_has_the_rates_of_its_compute_units(compute, units, share):
    device, card = part(compute, units=units), part("SPX", units=304)
    for limit in ("tensor.float16", "tensor.float8", "float32", "tensor.float64"):
        assert hardware.peak(device, limit).value == pytest.approx(hardware.peak(card, limit).value / share)
    if share > 1:
        assert hardware.peak(device, "float32").source.startswith(
            f"{units} of 304 compute units of AMD Instinct MI300X"
        )


def test_the_memory_of_a_device_of_a_split_card_is_that_of_its_memory_partition():
    assert hardware.peak(part("CPX", "NPS1"), "dram").value == 5.325e12
    assert hardware.peak(part("CPX", "NPS4"), "dram").value == 5.325e12 / 4
    assert hardware.peak(part("CPX", ""), "dram") is None


def test_a_partitioned_card_has_only_documented_peaks():
    assert hardware.peak(part("CPX"), "link.peer") is None, "the devices of one card have no link between them"
    assert hardware.peak(part("CPX", units=0), "float32") is None
    assert hardware.peak(part("CPX", name="AMD Instinct MI250X"), "float32") is None
    assert hardware.peak(part("CPX"), "link.h2d") == hardware.peak(part("SPX"), "link.h2d")


JOULES = tuple(700.0 * second for second in range(11))
SECONDS = tuple(float(second) for second in range(11))


def sustained(series, window=(0.5, 9.5), **fields):
    """Return the energy figure of a result of this series, with an energy counter at 700 W."""
    result = make.result(series, window=window, **fields)
    joules = fields.pop("joules", JOULES)
    return summed(result, at=SECONDS, **{"clock.sm": None, "clock.memory": None, "energy": joules}).energy(result)


def filling(series, seconds=9.0, **fields):
    """Return the same series with samples that take `seconds` in total."""
    return dataclasses.replace(series, values=(seconds / 90,) * 90, stop="interval", **fields)


BYTES = make.timing(1.0, moved=1.0)
TOKENS = dataclasses.replace(BYTES, quantity="items", item="token")


@pytest.mark.parametrize(
    ("series", "work", "value", "text"),
    [
        (product(684.0), Work(flops=684e12 * 0.1), 684e12 / 700, "977.1 GFLOP/J"),
        (BYTES, Work(moved=4e12 * 0.1), 700 / 4e12, "0.1750 J/GB"),
        (TOKENS, Work(moved=1e9, items=16), 700 * 0.1 / 16, "4.375 J/token"),
    ],
)
def test_energy_is_the_mean_power_of_the_window_and_the_rate(series, work, value, text):
    figure = sustained(filling(series, work=work))
    assert (figure.watts, figure.span_s, figure.value) == pytest.approx((700.0, 8.0, value))
    assert figure.text == f"{text} at 700.0 W over 8.00 s"


@pytest.mark.parametrize(
    ("series", "fields", "reason"),
    [
        (filling(product()), {"window": (0.5, 2.0)}, "over 1.0 s, less than 1.5 s"),
        (filling(product(), 3.0), {}, "the samples fill 33 % of the case's window"),
        (filling(make.timing(1.0, items=1.0)), {}, "the figure is a time, not a rate"),
        (filling(product(), mode="cold"), {}, "flushing the cache between calls"),
        (filling(product()), {"devices": ("cuda:0", "cuda:1")}, "several processes or devices"),
    ],
    ids=["short", "idle", "no-rate", "cold", "shared"],
)
def test_where_there_is_no_energy_figure_the_reason_is_given(series, fields, reason):
    figure = sustained(series, **fields)
    assert isinstance(figure, NoEnergy)
    assert reason in figure.reason


def test_a_window_of_two_series_has_no_energy_figure_and_host_times_are_no_second_series():
    hot, cold, host = (
        filling(product()),
        filling(product(), mode="graph"),
        filling(product(), mode="host", role="derived"),
    )
    result = make.result(hot, dataclasses.replace(host, stop=""), window=(0.5, 9.5))
    mixed = make.result(hot, cold, window=(0.5, 9.5))
    table = summed(result, mixed, at=SECONDS, **{"clock.sm": None, "clock.memory": None, "energy": JOULES})
    assert isinstance(table.energy(result), Energy)
    assert table.energy(mixed).reason == "other series ran in the same window: graph"


def test_discarded_samples_count_as_the_same_load_for_energy():
    series = filling(product(), 4.5)
    assert isinstance(sustained(series), NoEnergy)
    assert isinstance(sustained(series, discarded=(("warm-up", 90),)), Energy)


def test_a_device_without_an_energy_counter_says_so():
    result = make.result(filling(product()), window=(0.0, 10.0))
    assert summed(result).energy(result).reason == "cuda:0 has no energy counter"
    assert summed(result).energy(make.result(status="skipped")).reason == "nothing was timed"


@pytest.mark.parametrize(
    ("at", "clocks", "basis"),
    [
        ((0.4, 0.6), (1.5e9, 1.5e9), ["spec", "clock", "best"]),
        ((0.4, 0.6), (0.345e9, 1.98e9), ["spec", "best"]),
        ((0.0, 1.0), (1.5e9, 1.5e9), ["spec", "best"]),
    ],
)
def test_a_case_between_two_near_readings_has_their_clock_if_they_agree(at, clocks, basis):
    result = make.result(product(), window=(0.45, 0.55))
    figure = summed(result, at=at, **{"clock.sm": clocks}).rows()[0].figure
    assert [share.basis for share in figure.shares] == basis


def roof_of(*results):
    """Return the share of the roof of the last result's headline, with the other results in the same run."""
    figure = summed(*results).rows()[-1].figure
    return figure.share_of("roof")


def read_at(rate, suite="bandwidth"):
    """Return a read of memory at a rate in B/s."""
    return make.result(make.timing(1e-3, moved=rate * 1e-3, limit="dram"), of=make.case("read", suite))


def counted(seconds, moved, flops, **fields):
    """Return a call that counts bytes and operations, judged by the operations of tensor cores in bfloat16."""
    work = Work(moved=moved, flops=flops, items=fields.pop("items", 0.0))
    fields = {"quantity": "flops", "limit": "tensor.bfloat16", **fields}
    return make.result(make.timing(seconds, work=work, **fields), of=make.case("grouped", "gemm"))


def test_a_figure_with_operations_and_bytes_has_a_share_of_the_smaller_of_its_peak_and_what_its_bytes_allow():
    few_bytes, many_bytes = counted(1e-3, 1e6, 500e9), counted(1e-3, 2.3e9, 200e9)
    peak = roof_of(read_at(4.6e12), few_bytes)
    assert (peak.fraction, peak.peak) == (pytest.approx(0.506, abs=1e-3), 989e12)
    memory = roof_of(read_at(4.6e12), many_bytes)
    assert (memory.fraction, memory.peak) == (pytest.approx(0.5), pytest.approx(400e12))
    assert memory.source == "memory at 4600 GB/s (read in this run), 86.96 operations per byte"
    of_sheet = roof_of(many_bytes)
    assert of_sheet.fraction == pytest.approx(2.3 / 4.8), "a run that did not read memory has the data sheet's rate"
    assert "data sheet" in of_sheet.source


def test_only_the_reads_of_memory_on_the_same_device_give_the_rate_of_a_roof():
    many_bytes = counted(1e-3, 2.3e9, 200e9)
    for other in (
        make.result(make.timing(1e-3, moved=4.6e9, limit="dram"), of=make.case("copy")),
        dataclasses.replace(read_at(4.6e12), status="failed"),
        make.result(make.timing(1e-3, moved=6e9, limit="dram"), of=make.case("read")),  # above the peak
        make.result(make.timing(1e-3, moved=2e9), of=make.case("read")),  # in a cache: compared with no peak
    ):
        assert roof_of(other, many_bytes).fraction == pytest.approx(2.3 / 4.8)
    assert roof_of(read_at(4.6e12, "gemm"), many_bytes).fraction == pytest.approx(0.5)


def test_a_step_of_tokens_has_a_share_of_its_roof_and_the_roof_is_in_tokens():
    step = counted(1e-2, 23e9, 1e9, quantity="items", limit="dram", item="token", items=4.0)
    share = roof_of(read_at(4.6e12), step)
    assert (share.fraction, share.peak) == (pytest.approx(0.5), pytest.approx(800))


def test_bytes_alone_and_bytes_that_a_cache_served_have_no_roof():
    assert roof_of(read_at(4.6e12)) is None
    assert roof_of(counted(1e-3, 0.0, 500e9)) is None
    assert roof_of(read_at(4.6e12), counted(1e-3, 9e9, 500e9)) is None


def test_the_roofs_of_recorded_cases_tell_what_the_share_of_dense_does_not():
    """`grouped` at 25 % of dense and `tall` at 24 % were shown without their roofs, and steps without any bound."""
    shares = {}
    for name in ("whole/h200", "h200-inference"):
        for row in Summary(store.read_run(RECORDINGS / f"{name}.jsonl.gz")).rows():
            roof = row.figure.share_of("roof") if row.figure and row.result.status == "ok" else None
            if roof:
                shares[row.result.case.id.partition("/")[2].partition("[")[0], round(row.figure.share, 3)] = (
                    roof.fraction
                )
    assert shares["grouped", 0.258] == pytest.approx(0.478, abs=1e-3)
    assert shares["tall", 0.251] == pytest.approx(0.839, abs=1e-3)
    assert shares["square", 0.713] == pytest.approx(0.713, abs=1e-3)
    assert shares["decode_attention", 0.282] == pytest.approx(0.289, abs=1e-3)
    assert shares["step", 0.585] == pytest.approx(0.599, abs=1e-3)
    assert shares["step", 0.315] == pytest.approx(0.315, abs=1e-3)  # int4, batch 16, in a run without a read
    assert max(shares.values()) < 1.0
