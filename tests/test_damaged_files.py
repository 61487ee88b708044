"""No damaged or costly file crashes what reads it; `damaged_files.py` and `costly_files.py` do this at length."""

import tracemalloc

import _damage
import _make as make
import costly_files
import damaged_files
import pytest

from gpubench.analysis.quantities import slowest_series
from gpubench.base.errors import FileError
from gpubench.model import store


def test_a_damaged_file_is_refused_or_read_by_every_command():
    kinds = ("a number at an end", "a number is 0", "a list", "another type")
    counts = damaged_files.run(6, seed=6, kinds=kinds, most_parts=2)
    assert counts.crashes == {}
    outcomes = {outcome for _, outcome in counts.counts}
    assert outcomes == {"loaded", "refused"}


def test_every_kind_of_damage_changes_the_file():
    part = _damage.parts(2)[1]
    original = _damage.content(part)
    assert [kind for kind in _damage.KINDS if _damage.damaged(kind, part, "1") == original] == []


REFUSED = (
    "a million keys",
    "a million equal keys",
    "a million lists in lists",
    "a number of a million digits",
    "100 kB of empty lines",
)


@pytest.mark.parametrize("name", REFUSED)
def test_reading_a_hostile_file_takes_little_more_memory_than_its_size(tmp_path, name):
    """A parser makes objects that are a hundred times as large as their text."""
    path = tmp_path / "costly.jsonl"
    path.write_bytes(costly_files.FILES[name]())
    tracemalloc.start()
    try:
        with pytest.raises(FileError):
            store.read_run(path)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 3 * path.stat().st_size + 2**20


def test_grouping_the_series_of_a_result_takes_linear_time(monkeypatch):
    result = make.result(*(make.timing(1e-3, name=f"observed{number}") for number in range(200)))
    looked: list[None] = []
    label = type(result.series[0]).label
    monkeypatch.setattr(
        type(result.series[0]), "label", property(lambda series: (looked.append(None), label.fget(series))[1])
    )
    assert len(list(slowest_series(result))) == 200
    assert len(looked) <= 2 * 200
