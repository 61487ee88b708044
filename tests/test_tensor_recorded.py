"""A recorded run of the suite tensor on an H200: the figures that the page on tensor cores quotes, and its charts."""

from pathlib import Path

import pytest

from gpubench import plugins, stats
from gpubench.analysis.summary import Summary
from gpubench.model import store

RUN = store.read_run(Path(__file__).parent / "recordings" / "h200-tensor.jsonl.gz")


def figures():
    rows = Summary(RUN).rows()
    return {row.result.case.id.removeprefix("tensor/"): row.figure.interval.centre for row in rows}


def test_each_rung_of_the_ladder_is_faster_than_the_one_below():
    medians = figures()
    rates = [medians[f"hgemm[rung={rung},n=8192]"] for rung in ("mma", "async", "bulk", "wgmma")]
    assert rates == sorted(rates)
    assert rates[-1] > 650e12


def test_the_best_rungs_reach_the_shares_of_the_vendors_rate_that_the_page_quotes():
    shares = {
        dict(result.case.params)["rung"]: stats.median(series.values)
        for result in RUN.results
        for series in result.series
        if series.name == "of_vendor"
    }
    assert shares["bulk"] > 60
    assert shares["wgmma"] > 100


@pytest.mark.slow
def test_the_charts_and_the_head_of_the_page_show_the_ladder():
    page = plugins.load("reports", "html").render(RUN)
    assert "HGEMM ladder: share of the vendor" in page
    assert "HGEMM by wgmma, of the vendor" in page
