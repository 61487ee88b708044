"""The figures of one link; tails of times: pure functions of a run."""

import _make as make
import pytest

from gpubench.analysis.summary import Summary
from gpubench.analysis.views.tables import link_figures, link_tables, tail_tables
from gpubench.model import Series, Work

PAIR = ("cuda:0", "cuda:1")


def copy(name, gigabytes, suite="ipc", devices=PAIR, size=2**30, extra=(), **tags):
    rate = gigabytes * 1e9
    named = (("hot", size), *extra)
    series = [Series(name, "s", (size / rate,), work=Work(payload=n), quantity="payload") for name, n in named]
    notes = tuple((f"link.{tag}", text) for tag, text in tags.items())
    case = make.case(name, suite, size_bytes=size)
    return make.result(*series, of=case, devices=devices, notes=(("devices", "a and b"), *notes))


ENGINE = {"direction": "one way", "engine": "copy engine"}


def figures(*results):
    (table,) = link_figures(Summary(make.run(*results)))
    return table


def test_the_best_figure_of_the_largest_size_comes_first():
    listed = figures(
        copy("load", 370, direction="one way", engine="kernel"),
        copy("pull", 396, **ENGINE),
        copy("all_reduce", 330, suite="collectives", direction="both ways", engine="library"),
    )
    assert [figure.case.name for figure in listed] == ["pull", "load", "all_reduce"]
    assert listed[0].differences == ()
    assert listed[1].differences == (("engine", "kernel"),)
    assert dict(listed[2].differences) == {"direction": "both ways", "engine": "library"}
    listed = figures(copy("pull", 5, size=2**12, **ENGINE), copy("pull", 396, **ENGINE), copy("push", 395, **ENGINE))
    assert [figure.case.param("size_bytes") for figure in listed] == [2**30, 2**30]


def test_both_directions_of_a_link_share_a_table_and_another_link_has_its_own():
    across = ("cuda:0", "cuda:2")
    results = [
        copy("pull", 396, **ENGINE),
        copy("read", 395, suite="p2p", devices=("cuda:1", "cuda:0"), **ENGINE),
        copy("pull", 50, devices=across, **ENGINE),
        copy("push", 49, devices=across, **ENGINE),
    ]
    tables = link_tables(Summary(make.run(*results)))
    assert [table.title for table in tables] == [
        "Figures of one link: cuda:0 + cuda:1",
        "Figures of one link: cuda:0 + cuda:2",
    ]
    assert [row[3] for row in tables[0].rows] == ["100.0 %", "99.7 %"]


def test_a_copy_in_both_directions_shows_one_direction_and_the_sum():
    both = copy("both", 390, extra=(("sum", 2**31),), direction="both ways", engine="copy engine")
    (table,) = link_tables(Summary(make.run(copy("pull", 396, **ENGINE), both)))
    assert [row[1:3] for row in table.rows] == [("396.0 GB/s", "–"), ("390.0 GB/s", "780.0 GB/s")]


@pytest.mark.parametrize(
    "results",
    [
        (),
        (copy("pull", 396, **ENGINE),),
        (copy("pull", 396), copy("push", 396)),
        (make.result(status="failed", of=make.case("pull")), copy("push", 396, **ENGINE)),
    ],
    ids=["nothing", "one figure", "no tags", "one failed"],
)
def test_with_fewer_than_two_comparable_figures_there_is_no_table(results):
    assert link_tables(Summary(make.run(*results))) == []


def latencies(count, name="self", slow=0.0, rank=0):
    values = [slow if slow and place % 1000 == 999 else 1e-6 for place in range(count)]
    return make.timing(*values, name=name, items=1, rank=rank)


def tails(*series):
    tables = tail_tables(Summary(make.run(make.result(*series, of=make.case("signal")))), "bandwidth")
    return [row[2:] for table in tables for row in table.rows]


def test_a_tail_is_shown_where_enough_samples_lie_beyond_it():
    assert tails(latencies(9_999)) == []
    (row,) = tails(latencies(20_000, slow=5e-6))
    assert row == ("1.000 µs", "1.000 µs", "1.004 µs", "5.000 µs", "20000")
    (row,) = tails(latencies(10, name="hot"), latencies(1_500, name="tail.each"))
    assert row == ("1.000 µs", "1.000 µs", "–", "1.000 µs", "1500")
    (row,) = tails(latencies(20_000), latencies(20_000, slow=9e-6, rank=1))
    assert row[3] == "9.000 µs"
    assert tails(make.timing(*[1.0] * 20_000, moved=1.0)) == []
