"""Numbers in eight bytes each: they equal the sequence that they were made of."""

import pickle

import _make as make
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.analysis.counters import CounterTable
from gpubench.model import Samples, store
from gpubench.model.disk import Packed
from gpubench.model.record import decode, encode

gapped = st.lists(st.none() | st.floats(allow_nan=False))


@given(gapped, st.slices(20))
def test_packed_numbers_equal_the_sequence_that_they_were_made_of(values, part):
    packed = Packed(values)
    assert packed == values
    assert packed == tuple(values)
    assert tuple(values) == packed
    assert list(packed) == values
    assert [packed[index] for index in range(len(packed))] == values
    assert packed[part] == values[part]
    assert pickle.loads(pickle.dumps(packed)) == packed
    assert hash(packed) == hash(tuple(values))


@given(gapped, gapped)
def test_packed_numbers_are_joined_in_order(before, after):
    packed = Packed(before)
    packed.extend(Packed(after))
    assert packed == before + after


def test_packed_numbers_differ_if_a_value_differs_or_is_missing():
    assert Packed([1.0, None]) != [1.0, 2.0]
    assert Packed([1.0]) != [1.0, 2.0]
    assert Packed([1.0]) != "1"


def test_an_array_of_packed_numbers_shares_their_memory_and_cannot_be_written():
    packed = Packed([1.0, None, 3.0])
    array = np.asarray(packed, dtype=float)
    assert np.isnan(array[1])
    assert np.shares_memory(array, packed.numpy())
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2.0


def test_packed_samples_are_written_as_those_of_tuples():
    tuples = Samples("nvml", "cuda:0", (0.0, 0.1), (("nvml.power", (None, 1e22)), ("nvml.clock.sm", (1.5e-7, 3.0))))
    columns = tuple((name, Packed(values)) for name, values in tuples.columns)
    packed = Samples("nvml", "cuda:0", Packed(tuples.at), columns)
    assert encode(packed) == encode(tuples)
    assert decode(encode(packed)) == tuples
    assert b"[null,1e+22]" in encode(packed)


def test_many_rows_are_split_when_they_are_written_and_read_again_as_they_were(tmp_path):
    rows = 200_000
    values = np.random.default_rng(1).random(rows)
    at = Packed[float]((np.arange(rows) / 10).tolist())
    long = Samples("nvml", "cuda:0", at, (("nvml.power", Packed(values.tolist())),))
    path = tmp_path / "long.jsonl"
    path.write_bytes(store.encode_run(make.run(sampled=[long])))
    assert max(map(len, path.read_bytes().splitlines())) <= store.SAMPLES_LIMIT_BYTES
    (track,) = CounterTable.of_run(store.read_run(path)).tracks
    assert np.array_equal(track.values, values)
    assert np.array_equal(track.at, np.asarray(at))
