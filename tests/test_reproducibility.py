"""The deviation of medians between fresh processes: from a run's replicates, else from the recordings."""

import re
from pathlib import Path

import _make as make
import pytest
import reproducibility_table

from gpubench.analysis.figure import Figure
from gpubench.analysis.fingerprint import Reproducibility, recorded_sources_text
from gpubench.analysis.summary import Summary
from gpubench.cli import _print, _summary
from gpubench.knowledge.data_sheets import recorded_deviation, recorded_deviations
from gpubench.model import store

RECORDINGS = Path(__file__).parent / "recordings"
TRIAD = make.case(size_bytes=2**30, dtype="float32")


def deviation_of(*medians, of=TRIAD, name="NVIDIA H200", devices=("cuda:0",)):
    """Return the reproducibility of a case with one replicate for each of these medians."""
    results = [make.result(make.timing(s), of=of, devices=devices, replicate=i) for i, s in enumerate(medians)]
    device = [make.device(device, name) for device in devices]
    summary = Summary(make.run(*results, facts=make.facts(*device)))
    return summary.reproducibility(summary.spreads()[0])


def test_the_shipped_table_equals_what_the_recordings_give():
    rows = reproducibility_table.table()
    assert reproducibility_table.TABLE.read_text(encoding="utf-8") == reproducibility_table.text(rows)
    assert list(recorded_deviations().values()) == rows


def test_the_interval_of_one_process_contains_the_median_of_another_in_half_of_the_pairs():
    held, pairs = reproducibility_table.coverage()
    assert (held / pairs, pairs) == (pytest.approx(0.523, abs=0.005), 2700)


def test_a_power_capped_product_differs_between_processes_by_far_more_than_its_interval_within_one():
    summary = Summary(store.read_run(RECORDINGS / "headline/2.jsonl.gz"))
    (product,) = [spread for spread in summary.spreads() if spread.case.suite == "gemm"]
    assert min(figure.interval.half_width for figure in product.figures) < 0.0025
    assert summary.reproducibility(product).text == "1.8 %"
    assert recorded_deviation("NVIDIA H200", product.case.id).percent == pytest.approx(2.29, abs=0.01)


def test_the_deviation_is_that_of_three_replicates_or_the_recorded_one():
    assert deviation_of(1.0, 1.2, 0.8) == Reproducibility(pytest.approx(0.2), 3)
    assert deviation_of(1.0, 1.2, 0.8).text == "20.0 %"
    for medians in [(1.0,), (1.0, 1.2)]:
        deviation = deviation_of(*medians)
        assert (deviation.is_recorded, deviation.processes, deviation.text) == (True, 48, "0.03 % recorded")
        assert deviation.source == (
            "NVIDIA H200, 2026-11-20, recordings headline/1, headline/2, headline/3, headline/4"
        )


@pytest.mark.parametrize(
    "others", [{"of": make.case(size_bytes=2**31, dtype="float32")}, {"name": "NVIDIA H100"}, {"devices": ()}]
)
def test_another_case_or_model_has_no_recorded_deviation(others):
    assert deviation_of(1.0, **others) is None


def test_the_sentence_beneath_a_table_names_each_recording_once():
    deviations = [
        deviation_of(1.0),
        deviation_of(1.0),
        deviation_of(1.0, of=make.case("longer", "nowhere")),
        deviation_of(1.0, 1.2, 0.8),
    ]
    sentence = "NVIDIA H200, 2026-11-20: headline/1, headline/2, headline/3, headline/4"
    assert recorded_sources_text(deviations).endswith(f"({sentence})")
    assert recorded_sources_text([deviation_of(1.0, 1.2, 0.8), None]) == ""


def test_the_text_of_a_figure_states_the_kind_of_its_interval():
    run = make.run(*[make.result(make.timing(1.0), replicate=index) for index in range(12)])
    summary = Summary(run)
    assert summary.rows()[0].figure.interval_name == "95 % within process"
    (spread,) = summary.spreads()
    assert isinstance(spread.figure, Figure)
    assert spread.figure.interval_name == "95 % of 12 processes"


def written(run, **options):
    """Return the lines that the terminal shows for the cases of a run."""
    console = _print.out()
    with console.capture() as capture:
        console.print(*_summary.cases(Summary(run), **options), sep="\n")
    lines = [re.sub(r"  +", "  ", line).strip() for line in capture.get().splitlines()]
    return [line for line in lines if line]


def test_the_deviation_between_processes_is_shown_if_it_is_known():
    run = make.run(make.result(make.timing(1.0, 1.1, 1.2), of=TRIAD))
    _, above, heads, triad, *_, recorded = written(run, wide=True)
    assert (above.strip(), "  noise within  between" in heads) == ("± within", True)
    assert "  0.03 % recorded" in triad
    assert recorded.startswith("recorded: taken from recordings that gpubench ships")
    _, _, heads, _, note, *_ = written(make.run(make.result(make.timing(1.0, 1.1, 1.2))), wide=True)
    assert "between" not in heads
    assert note == "± is the 95 % interval within one process; --replicates 3 measures how much processes differ"
