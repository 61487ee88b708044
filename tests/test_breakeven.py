"""When compressing pays: break-even links, bounds, verdicts, named links, and the tables of a run."""

import csv
import io
import json
import math
from pathlib import Path

import _make as make
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gpubench.analysis.summary import Summary
from gpubench.analysis.views import breakeven, choices
from gpubench.analysis.views.breakeven import CodecRates
from gpubench.analysis.views.payoffs import Payoffs
from gpubench.analysis.views.table import derived
from gpubench.analysis.views.tables import tables
from gpubench.base.errors import UsageError
from gpubench.cli import app
from gpubench.model import NamedLink, Series, Settings, SuiteInfo, View, Work, store
from gpubench.stats import Interval
from gpubench.tools import rendering

GB = 1e9
VIEW = View("breakeven", "Where compressing pays", ("roundtrip", "send"))
rates = st.floats(1e6, 1e13)
ratios = st.floats(1.001, 1000)


@given(rates, rates, ratios)
def test_at_the_break_even_link_a_serial_message_is_as_fast_as_the_raw_bytes(compress, decompress, ratio):
    coded = CodecRates(ratio, compress, decompress)
    for ends, link in (("apart", coded.both_sides), ("write", coded.write_only), ("read", coded.read_only)):
        assert coded.serial(ends, link) == pytest.approx(link, rel=1e-6)
        assert coded.serial(ends, link / 2) > link / 2
        assert coded.serial(ends, link * 2) < link * 2


@given(rates, rates, st.floats(0.5, 1000), rates)
def test_overlapping_is_never_slower_than_one_after_the_other(compress, decompress, ratio, link):
    coded = CodecRates(ratio, compress, decompress)
    for ends in ("shared", "apart", "write", "read"):
        assert coded.pipelined(ends, link) >= coded.serial(ends, link) * (1 - 1e-12)
    assert coded.pipelined("shared", link) <= coded.pipelined("apart", link)


@pytest.mark.parametrize("ratio", [0.99, 1.0])
def test_data_that_do_not_shrink_have_no_break_even_link(ratio):
    assert {CodecRates(ratio, GB, GB).both_sides, CodecRates(ratio, GB).write_only} == {0.0}


@pytest.mark.parametrize(
    ("low", "centre", "high", "text"),
    [
        (2.0, 2.1, 2.2, "faster 2.1×"),
        (0.5, 0.6, 0.7, "slower 0.6×"),
        (0.95, 0.97, 0.99, "slower 0.97×"),
        (0.98, 1.0, 1.01, "no change 1.00×"),
        (0.8, 1.3, 2.0, "unclear 1.3×"),
        (0.03, 0.04, 0.05, "slower 0.04×"),
        (100.0, 140.2, 150.0, "faster 140×"),
    ],
)
def test_a_verdict_says_faster_or_slower_only_where_its_whole_interval_does(low, centre, high, text):
    assert text == breakeven.verdict(Interval(low, centre, high))


def test_a_speed_up_is_as_uncertain_as_both_of_its_rates_together():
    ratio = breakeven.quotient(Interval(8, 10, 12.5), Interval(4, 5, 6.25))
    width = math.exp(math.sqrt(2) * math.log(1.25))
    assert (ratio.low, ratio.centre, ratio.high) == pytest.approx((2 / width, 2, 2 * width))


@pytest.mark.parametrize(
    ("text", "rate"),
    [("25GbE", 25e9 / 8), ("400Gb/s", 50e9), ("12.5GB/s", 12.5e9), ("100MbE", 12.5e6), ("1.6 Tbit/s", 200e9)],
)
def test_a_named_link_has_the_rate_that_its_name_says(text, rate):
    assert NamedLink(text, rate) == breakeven.named_link(text)


@pytest.mark.parametrize("text", ["", "fast", "0GbE", "25", "25 gigs", "-1GbE", "25GiB/s", "nanGbE"])
def test_a_link_that_states_no_rate_is_refused_with_examples(text):
    with pytest.raises(UsageError, match="write it as 25GbE, 400Gb/s or "):
        breakeven.named_link(text)


def test_a_link_that_states_no_rate_ends_a_run_before_anything_is_measured(tmp_path):
    out = tmp_path / "run.jsonl"
    done = CliRunner().invoke(app, ["run", "compression", "--device", "host", "--link", "fast", "-o", str(out)])
    assert isinstance(done.exception, UsageError)
    assert not out.exists()


def rate(name, gb_s, payload=GB):
    seconds = payload / (gb_s * GB)
    return make.timing(*(seconds,) * 9, name=name, work=Work(payload=payload), quantity="payload", stop="interval")


def ratio_of(value):
    return Series("ratio", "", (value,), better="more")


def run_of(*results, links=()):
    settings = Settings(suites=("compression",), devices=("cuda:0",), links=links)
    return make.run(*results, settings=settings, suites=(SuiteInfo("compression", "codecs", (VIEW,)),))


def codec(ratio=4.0, there=100.0, back=200.0, name="lz4"):
    of = make.case("roundtrip", "compression", corpus="ids", codec=name)
    return make.result(rate("compress.hot", there), rate("decompress.hot", back), ratio_of(ratio), of=of)


def transfer_of_ids(ends="apart", ratio=4.0, overlapped=90.0, name="lz4"):
    stages = {"overlapped": overlapped, "staged": 60.0, "raw": 25.0, "compress": 100.0, "decompress": 200.0}
    series = [rate(f"{name}.self", gb_s) for name, gb_s in stages.items()]
    of = make.case("send", "compression", link="peer", corpus="ids", codec=name)
    return make.result(*series, ratio_of(ratio), of=of, notes=(("ends", ends),))


def test_a_run_gives_the_overlap_efficiency_of_its_transfers_and_whether_compression_paid():
    (payoff,) = derived(Summary(run_of(codec(), transfer_of_ids())), Payoffs)
    (crossed,) = payoff.transfers
    assert crossed.bound == pytest.approx(100 * GB)
    assert crossed.share == pytest.approx(0.9)
    assert crossed.speedup.centre == pytest.approx(3.6)
    assert len(payoff.codecs) == 1


@pytest.mark.parametrize(("ends", "bound"), [("apart", 100), ("shared", 1 / (1 / 100 + 1 / 200)), ("read", 100)])
def test_the_bound_of_an_overlapped_transfer_counts_only_the_sides_that_pay(ends, bound):
    (payoff,) = derived(Summary(run_of(transfer_of_ids(ends))), Payoffs)
    assert payoff.transfers[0].bound == pytest.approx(bound * GB)


def test_a_transfer_that_does_not_state_who_pays_has_a_verdict_and_no_bound():
    (payoff,) = derived(Summary(run_of(transfer_of_ids(""))), Payoffs)
    assert (payoff.transfers[0].bound, payoff.transfers[0].share) == (None, None)
    (table,) = tables(Summary(run_of(transfer_of_ids(""))), "compression")
    assert table.rows[0][-4:] == ("–", "–", "faster 3.6×", "–")


def test_measured_and_modelled_links_have_separate_tables_if_there_are_any():
    links = (NamedLink("25GbE", 25e9 / 8), NamedLink("800GB/s", 800e9))
    measured, even, modelled = tables(Summary(run_of(codec(), transfer_of_ids(), links=links)), "compression")
    assert measured.title == "Measured: Where compressing pays"
    assert measured.rows[0][-4:] == ("100.0 GB/s", "90.0 %", "faster 3.6×", "faster 4.0×")
    assert even.rows[0][-3:] == ("50.0 GB/s (400 Gb/s)", "75.0 GB/s (600 Gb/s)", "150 GB/s (1200 Gb/s)")
    assert modelled.title == "Modelled, not measured: Where compressing pays"
    assert modelled.rows[0][2:] == ("25GbE", "faster 3.4×", "faster 4.0×", "faster 4.0×", "faster 4.0×")
    assert modelled.rows[1][2:] == ("800GB/s", "slower 0.08×", "slower 0.1×", "slower 0.1×", "slower 0.2×")
    (even,) = tables(Summary(run_of(codec(ratio=0.9))), "compression")
    assert even.rows[0][-3:] == ("never",) * 3


def test_other_cases_and_cases_without_a_ratio_are_left_out():
    lacking = make.result(rate("compress.hot", 1.0), of=make.case("roundtrip", "compression"))
    (payoff,) = derived(Summary(run_of(lacking, make.result())), Payoffs)
    assert (payoff.codecs, payoff.transfers) == ((), ())


def test_reports_for_programs_contain_the_payoffs():
    run = run_of(codec(), transfer_of_ids())
    (record,) = json.loads(rendering.report("json").render(run))["payoffs"]
    assert record["codecs"][0]["break_even"]["message"] == pytest.approx(50e9)
    assert record["crossings"][0]["speedup"]["median"] == pytest.approx(3.6)
    lines = list(csv.DictReader(io.StringIO(rendering.report("csv").render(run))))
    medians = {line["series"]: float(line["median"]) for line in lines if line["quantity"] == "derived"}
    assert medians["speed-up over raw"] == pytest.approx(3.6)
    assert math.isclose(medians["break-even read_only"], 150e9)


def test_a_recorded_compression_run_gives_the_recorded_verdicts():
    """Two H200: LZ4 is as fast as the link out of the GPU and faster than the one into it, Cascaded than both."""
    run = store.read_run(Path(__file__).parent / "recordings/whole/h200x2-compression.jsonl.gz")
    measured = next(table for table in tables(Summary(run), "compression") if table.title.startswith("Measured"))
    verdicts = {row[0].partition("send[link=")[2].partition(",size")[0]: row[-2:] for row in measured.rows}
    assert {name: said for name, said in verdicts.items() if "2" in name} == {
        "d2h,corpus=ids,codec=lz4": ("faster 1.01×", "faster 1.2×"),
        "d2h,corpus=ids,codec=cascaded": ("faster 2.6×", "faster 2.6×"),
        "h2d,corpus=ids,codec=lz4": ("faster 2.8×", "faster 3.1×"),
        "h2d,corpus=ids,codec=cascaded": ("faster 9.8×", "faster 10.9×"),
    }
    assert all(measured.split()[0] == model.split()[0] for measured, model in verdicts.values())


def test_the_chart_has_a_bar_up_to_each_break_even_link_and_a_line_for_each_link_that_was_crossed():
    run = store.read_run(Path(__file__).parent / "recordings/whole/h200x2-compression.jsonl.gz")
    page = rendering.report("html").render(run)
    drawing = next(svg for svg in page.split("<svg ") if "Break-even link bandwidth by codec: " in svg)
    assert "ids · lz4 up to 38.0 GB/s" in drawing
    assert drawing.count("<rect ") == 22
    assert "not shown, because they never pay: 2" in page
    for link in ("save", "load", "socket", "d2h", "h2d", "peer", "process"):
        assert f"> {link} </text>" in drawing


def test_a_named_link_is_a_line_of_the_chart_too():
    page = rendering.report("html").render(run_of(codec(), links=(NamedLink("25GbE", 25e9 / 8),)))
    assert "> 25GbE </text>" in page


# Advice.


CODECS = {"fast": CodecRates(2, 100 * GB, 200 * GB), "strong": CodecRates(8, 20 * GB, 20 * GB)}


@pytest.mark.parametrize(("link", "advised"), [(1, "strong"), (20, "fast"), (300, "raw")])
def test_the_advice_follows_the_rate_of_the_link(link, advised):
    assert choices.best_codec(CODECS, "apart", link * GB)[0] == advised
    assert choices.best_codec({}, "apart", link * GB) == ("raw", link * GB), "without codecs"


@given(st.dictionaries(st.text(), st.builds(CodecRates, ratios, rates, rates), max_size=9), rates)
def test_no_codec_is_faster_by_the_model_than_the_advised_one(codecs, link):
    _, rate = choices.best_codec(codecs, "apart", link)
    assert rate == max([link, *(coded.pipelined("apart", link) for coded in codecs.values())])


def run_with_advice(fast_reached):
    round_trips = (codec(), codec(8.0, 20.0, 20.0, "zstd"))
    transfers = (transfer_of_ids(overlapped=fast_reached), transfer_of_ids(overlapped=60.0, name="zstd"))
    return run_of(*round_trips, *transfers, links=(NamedLink("1GB/s", GB), NamedLink("800GB/s", 800 * GB)))


@pytest.mark.parametrize(("reached", "best", "loss"), [(90.0, "lz4", 0.0), (30.0, "zstd", 0.5)])
def test_the_advice_is_compared_with_transfers_that_it_did_not_use(reached, best, loss):
    (payoff,) = derived(Summary(run_with_advice(reached)), Payoffs)
    (measured,) = payoff.advice
    assert (measured.advised, measured.best, measured.loss) == ("lz4", best, pytest.approx(loss))


def test_the_advice_for_measured_and_named_links_is_a_table():
    advised, compared = tables(Summary(run_with_advice(30.0)), "compression")[-2:]
    assert advised.heads[2:] == ("fastest", "smallest", "over 1GB/s", "over 800GB/s", "over peer")
    assert advised.rows[0][2:] == ("lz4", "zstd", "zstd 8.0×", "raw", "lz4 4.0×")
    assert compared.note == (
        "Loss of the measured rate: worst 50.0 %, median 50.0 %. The advice used none of these transfers"
    )
