"""Texts for users: summaries that fit a line, titles that name the quantity on the axis, plain messages."""

import ast
import re
from pathlib import Path

import pytest

from gpubench import plugins
from gpubench.analysis.summary import Summary
from gpubench.analysis.views.curves import view_points
from gpubench.measuring.plan import load_suite
from gpubench.model import store

RECORDINGS = Path(__file__).parent / "recordings"
SUITES = plugins.names("suites")
ROOT = Path(__file__).parents[1]
ROOMS = ("suites", "collectors", "gpubench/analysis", "gpubench/measuring", "gpubench/devices")
# each has a standard term instead: missing or unsupported, maximum, 95 % confidence, SM or compute unit, poison
AVOIDED = re.compile(r"\b(lack(s|ing)?|greatest|surely|multiprocessors?|spoil\w*|nobody|theirs|so many|slow-down)\b")
TABLES = ("choice", "interval", "scaling")  # views that name a decision and draw no axis
DERIVED = ("amortisation", "serving")  # views whose axis is computed from figures of another unit
UNITS = {  # the unit of a figure, by the quantity that its title names first
    "bandwidth": {"B/s"},
    "throughput": {"B/s", "FLOP/s", "OP/s", "token/s", "message/s", "request/s", "addition/s"},
    "latency": {"s", "cycles"},
    "time": {"s"},
    "overhead": {"s"},
    "ratio": {""},
    "regret": {""},
    "slowdown": {""},
    "share": {"%"},
    "cycles": {"cycles"},
    "operations": {"per clock and SM"},
    "calls": {"calls"},
}


def quantity(title):
    """Return the first word of a title that names a quantity, or an empty text."""
    terms = title.lower().replace(":", " ").replace(",", " ").split()
    return next((word for word in terms if word in UNITS), "")


def drawn_units(run):
    summary = Summary(run)
    for info in run.manifest.suites:
        for view in info.views if info.name in SUITES else ():
            if view.kind in (*TABLES, *DERIVED):
                continue
            series = view.y if view.kind == "pareto" else view.series
            for point in view_points(summary, info.name, view, series):
                yield view, point.figure.unit


@pytest.mark.parametrize("name", SUITES)
def test_a_summary_is_one_plain_line_of_at_most_70_characters(name):
    summary = load_suite(name).summary
    assert summary == " ".join(summary.split()).rstrip(".")
    assert 20 <= len(summary) <= 70


@pytest.mark.parametrize("name", SUITES)
def test_a_title_names_a_quantity_and_no_other_view_of_the_suite_has_it(name):
    views = load_suite(name).views
    drawn = [view.title for view in views if view.kind not in TABLES]  # the tables of the others name their quantities
    assert [title for title in drawn if not quantity(title)] == []
    assert len({view.title for view in views}) == len(views)


@pytest.mark.parametrize("name", ["whole/h200", "whole/h200x2", "whole/h200x2-compression", "h200x2-quick"])
def test_the_quantity_in_a_title_is_the_one_on_the_axis(name):
    run = store.read_run(RECORDINGS / f"{name}.jsonl.gz")
    units = [(view.title, unit) for view, unit in drawn_units(run)]
    assert units
    assert {(title, unit) for title, unit in units if unit not in UNITS[quantity(title)]} == set()


def messages(source):
    """Yield the texts of a module that have a space and are no docstring."""
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in statements)
    yield from (node.value for node in constants if isinstance(node.value, str) and " " in node.value.strip())


@pytest.mark.parametrize("room", ROOMS)
def test_a_message_uses_the_standard_term(room):
    files = sorted((ROOT / room).rglob("*.py"))
    texts = [text for path in files for text in messages(path.read_text())]
    assert texts
    assert [text for text in texts if AVOIDED.search(text)] == []
