"""One line of a run file: the values that survive it, and the messages that refuse others."""

import json
import pickle
from pathlib import Path

import _make as make
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpubench import model
from gpubench.analysis.counters import CounterTable
from gpubench.model import Samples, limits, record, store
from gpubench.model.disk import Packed
from gpubench.model.record import decode, encode

SCHEMA_FILE = Path(record.__file__).with_name("run-1.schema.json")


def changed(of, *replacements):
    line = record.encode(of)
    for old, new in zip(replacements[::2], replacements[1::2], strict=True):
        assert old.encode() in line
        line = line.replace(old.encode(), new.encode(), 1)
    return line


def refusal(line):
    with pytest.raises(record.Malformed) as refused:
        record.decode(line)
    assert "\n" not in str(refused.value)
    return str(refused.value)


finite = st.floats(-limits.MOST, limits.MOST)
moment = st.floats(-limits.MOST_SECONDS, limits.MOST_SECONDS)
value = finite.filter(lambda entry: entry == 0 or abs(entry) >= limits.LEAST)
seconds = st.floats(limits.LEAST_SECONDS, limits.MOST_SECONDS)
amount = st.floats(limits.LEAST_WORK, limits.MOST_WORK)
text = st.text(st.characters(exclude_categories=["Cs"]))
param = st.tuples(text, text | st.integers(-(2**127), 2**127) | finite)
all_series = st.builds(
    model.Series,
    name=text,
    unit=text,
    values=st.lists(value).map(tuple),
    work=st.builds(model.Work, amount, amount, amount, amount),
    warmup_s=st.floats(0, limits.MOST_SECONDS),
)
timed_series = st.builds(
    model.Series,
    name=text,
    unit=st.just("s"),
    values=st.lists(seconds).map(tuple),
    work=st.builds(model.Work, amount, amount, amount, amount),
    quantity=st.sampled_from(["moved", "payload", "flops", "item", "items"]),
)
all_results = st.builds(
    model.Result,
    case=st.builds(model.Case, text, text, st.lists(param).map(tuple)),
    devices=st.lists(text, min_size=1).map(tuple),
    status=st.sampled_from(["ok", "skipped", "failed", "invalid"]),
    replicate=st.integers(0, 2**63 - 1),
    reason=text,
    series=st.lists(all_series | timed_series).map(tuple),
    notes=st.lists(st.tuples(text, text)).map(tuple),
    window=st.tuples(moment, moment).map(lambda ends: tuple(sorted(ends))),
)


@given(all_results)
@example(make.result(make.timing(1e-100, -1e100, -0.0, 0.1 + 0.2)))
@example(make.result(make.timing(0.0, -1.0)))
@example(make.result(of=make.case(size_bytes=2**70, ratio=1.0, whole=1)))
def test_every_finite_result_survives_its_line(result):
    decoded = record.decode(record.encode(result))
    assert decoded == result
    assert repr(decoded) == repr(result)


@given(st.lists(st.tuples(moment, st.none() | finite)))
def test_every_sample_and_missing_value_survives_its_line(rows):
    samples = make.samples([at for at, _ in rows], power=[value for _, value in rows])
    assert record.decode(record.encode(samples)) == samples


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | finite | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["kind", "case", "at", "end", "result"]), inner)
        ),
    ).map(lambda document: json.dumps(document).encode())
)
def test_any_other_bytes_are_refused_with_a_message_of_one_line(data):
    with pytest.raises(record.Malformed) as refused:
        record.decode(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("later", [(b"checks",), (b"checks", b"clock_hz")])
def test_a_result_of_an_older_form_without_later_fields_is_read_by_the_fast_path(monkeypatch, later):
    result = make.result(make.timing(1e-3), make.timing(2e-3, name="cold"))
    older = record.encode(result)
    for field in later:
        older = older.replace(b',"%s":null' % field, b"")
        assert field not in older
    monkeypatch.setattr(record, "_decode_any", None)  # the general path takes three times as long
    assert record.decode(older) == record.decode(record.encode(result)) == result


def test_the_keys_of_lines_that_differ_only_in_numbers_are_examined_once():
    record._is_in_written_order.cache_clear()
    for seconds in (1e-3, 0.25, 17.0):
        line = record.encode(make.result(make.timing(seconds), of=make.case("triad", size_bytes=int(2**20 * seconds))))
        assert record.decode(line).series[0].values == (seconds,)
    assert record._is_in_written_order.cache_info().misses == 1
    turned = json.dumps(dict(reversed(json.loads(line).items()))).encode()
    assert record.decode(turned) == record.decode(line), "in any order"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"status":"ok"', '"status":"ok","status":"failed"', "the key 'status' occurs twice in one object"),
        ('"name":"triad"', '"name":"copy","name":"triad"', "the key 'name' occurs twice in one object"),
        ('"cause":""', '"cause":"","cause" :""', "the key 'cause' occurs twice in one object"),
        ('"cause":""', '"cause":"","cau\\u0073e":""', "the key 'cause' occurs twice in one object"),
        ('"cause":""', '"cau5se":""', "cau5se: Unexpected keyword argument"),
        ('"cause":""', '"cau5se":"","cause":""', "cau5se: Unexpected keyword argument"),
        ("[0.001]", "[NaN]", "series.0.values.0: Input should be a finite number"),
        ("[0.001]", "[-Infinity]", "series.0.values.0: Input should be a finite number"),
        ("[0.001]", "[1e999]", "series.0.values.0: Input should be a finite number"),
        ('"name":"triad"', '"name":"' + "x" * 4097 + '"', "case.name: String should have at most 4096 characters"),
        ("[0.001]", '["0.001"]', "series.0.values.0: Input should be a valid number"),
        ("[0.001]", "[true]", "series.0.values.0: Input should be a valid number"),
        ("[0.001]", "0.001", "series.0.values: Input should be a valid array"),
        ('"at":[]', '"at":[1.0,2.0]', "series 'hot' has 1 values at 2 times"),
        ('"replicate":0', '"replicate":0.5', "replicate: Input should be a valid integer"),
        ('"replicate":0', '"replicate":' + "9" * 5000, "a number has too many digits"),
        ('"status":"ok"', '"status":"good"', "status: Input should be 'ok', 'skipped', 'failed' or 'invalid'"),
        ('"status":"ok",', "", "status: Field required"),
        ('"status"', '"colour":1,"status"', "colour: Unexpected keyword argument"),
        ('"elapsed_s":0.0', '"elapsed_s":-0.5', "elapsed_s: Input should be greater than or equal to 0"),
        ('"elapsed_s":0.0', '"elapsed_s":1e10', "elapsed_s: Input should be less than or equal to 1000000000"),
        ('"window":[0.0,0.0]', '"window":[2.0,1.0]', "window: it ends at 1 s, before it begins at 2 s"),
        ('"devices":["cuda:0"]', '"devices":[]', "devices: a result that is ok names the devices that were measured"),
        ('"moved":0.0', '"moved":-1.0', "series.0.work.moved: Input should be greater than or equal to 0"),
        ('"moved":0.0', '"moved":1e31', "series.0.work.moved: Input should be less than or equal to 1e+30"),
        ('"replicate":0', '"replicate":-1', "replicate: Input should be greater than or equal to 0"),
        ('"version":1', '"version":9223372036854775808', "case.version: Input should be less than"),
        ("[0.001]", "[1e101]", "series.0.values.0: Input should be less than or equal to 1e+100"),
        ("[0.001]", "[5e-324]", "series 'hot': 4.94066e-324 is smaller than 1e-100, and not 0"),
        ('"kind":"result"', '"kind":"advert"', "unknown kind of record 'advert'"),
        ('"kind":"result"', '"kind":["result"]', "unknown kind of record ['result']"),
        ('"kind":"result",', "", "unknown kind of record None"),
        ('{"kind"', '{kind"', "not JSON: Expecting property name enclosed in double quotes at column 2"),
        ('"quantity":"value"', '"quantity":"moved"', "series 'hot' is judged by 'moved', and its work.moved is 0"),
        ('"params":[]', '"params":' + "[" * 9999 + "]" * 9999, "nested too deeply"),
    ],
)
def test_a_changed_record_is_refused_with_a_message_that_names_the_place(old, new, message):
    assert refusal(changed(make.result(), old, new)).startswith(message)


@pytest.mark.parametrize("seconds", ["0.0", "-1.0", "5e-324", "1e-13", "1e10"])
@pytest.mark.parametrize("quantity", ["moved", "items", "item"])
def test_a_timed_call_takes_from_a_picosecond_to_a_gigasecond_so_that_every_rate_is_a_number(seconds, quantity):
    series = make.timing(1e-3, quantity=quantity, work=model.Work(moved=1.0, items=1.0))
    assert refusal(changed(make.result(series), "[0.001]", f"[{seconds}]")).startswith(
        "series 'hot': a timed call takes from 1e-12 to 1e+09 s, not "
    )


@pytest.mark.parametrize("started", ["yesterday", "0001-01-01", "9999-12-31T23:59:59-23:59", "2026-13-01"])
def test_the_start_of_a_run_is_a_time_or_empty(started):
    assert refusal(record.encode(make.manifest(started=started))).startswith("started: ")
    assert record.decode(record.encode(make.manifest(started=""))).started == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"kind":"result","notes":[' + b'["",""],' * 300_000, "the record holds more than 524288 texts"),
        (b'{"kind":"result","notes":[' + b"1," * 1_100_000, "the record holds more than 1048576 values"),
        (b'{"kind":"result","notes":' + b'{"a":' * 300_000, "the record holds more than 524288 texts"),
        (b'{"kind":"result","notes":' + b"{" * 300_000, "the record holds more than 262144 objects"),
        (b'{"kind":"result","notes":' + b"[" * 300_000, "the record holds more than 262144 lists"),
        (b'{"kind":"result"' + b"".join(b',"k%d":0' % number for number in range(200)) + b"}", "an object has more"),
    ],
)
def test_the_objects_of_a_record_are_counted_before_it_is_parsed(line, message, monkeypatch):
    monkeypatch.setitem(record._ADAPTERS, "result", None)
    assert refusal(line).startswith(message)


@pytest.mark.parametrize("value", ["null", '""', "{}", "[]", "true"])
@pytest.mark.parametrize("line", ["result", "samples"])
def test_of_a_million_faults_in_a_record_only_the_first_is_reported(line, value):
    """Each reported fault takes 1.6 KB of memory."""
    values = f"[{','.join([value] * 10_000)}]"
    of, old = (make.result(), "[0.001]") if line == "result" else (make.samples([1.0, 2.0]), "[1.0,2.0]")
    data = changed(of, old, values)
    with pytest.raises(record.Malformed) as refused:
        record.decode(data)
    assert refused.value.__cause__.error_count() == 1


def test_validation_of_every_list_stops_at_the_first_fault():
    """Otherwise a record of 16 MiB would give gigabytes of errors."""
    for adapter in record._ADAPTERS.values():
        lists = [node for node in nodes(adapter.core_schema) if variadic(node)]
        assert [node for node in lists if not node.get("fail_fast")] == []


def nodes(value):
    """Yield every dictionary in a schema."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for child in value:
            yield from nodes(child)


def variadic(schema):
    """Return whether a schema is that of a list of any length."""
    return schema.get("type") == "list" or "variadic_item_index" in schema


def test_columns_of_other_lengths_bytes_that_are_no_text_and_newer_schemas_are_refused():
    line = changed(make.samples([1.0, 2.0], power=[300.5, None]), "[1.0,2.0]", "[1.0,2.0,3.0]")
    assert refusal(line) == "column 'nvml.power' has 2 values at 3 times"
    assert refusal(record.encode(make.result()).replace(b"triad", b"tri\xffd")) == "not UTF-8 text"
    line = changed(make.manifest(), "gpubench.run/1", "gpubench.run/2", '"started"', '"invented":true,"started"')
    assert refusal(line) == "schema gpubench.run/2: a newer gpubench is needed (this one reads gpubench.run/1)"


@pytest.mark.parametrize("schema", ["gpubench.run/0", "gpubench.run/x", "other.run/1", ""])
def test_a_manifest_of_no_known_schema_is_refused(schema):
    assert refusal(changed(make.manifest(), "gpubench.run/1", schema)) == f"unknown schema {schema!r}"


# --- the published schema -----------------------------------------------------------------------


def test_the_published_schema_is_the_one_the_model_gives():
    published = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    assert published == store.schema(), "write json.dumps(gpubench.store.schema(), indent=2) to it"


@pytest.mark.parametrize("kind", ["run", "verdict", "fleet"])
def test_the_command_prints_each_schema_with_the_urn_of_its_version(call, kind):
    status, printed, _ = call("schema", kind)
    assert (status, json.loads(printed)["$id"]) == (0, f"urn:gpubench:{kind}:1")


def test_a_suite_has_at_most_200_views():
    """Each view may draw every case of the suite, so the time for a page grows with the product."""
    suites = (model.SuiteInfo("bandwidth", "memory", (model.View("bars", "all", ("triad",)),) * 201),)
    assert refusal(record.encode(make.manifest(suites=suites))).startswith(
        "suites.0.views: Tuple should have at most 200 items"
    )


def test_the_schema_distinguishes_the_kinds_and_allows_no_other_fields():
    schema = store.schema()
    kinds = {
        kind: schema["$defs"][where.rpartition("/")[2]] for kind, where in schema["discriminator"]["mapping"].items()
    }
    assert list(kinds) == ["manifest", "result", "samples", "remark", "end"]
    for kind, definition in kinds.items():
        assert definition["properties"]["kind"] == {"const": kind, "type": "string"}
        assert "kind" in definition["required"]
        assert definition["additionalProperties"] is False


@given(all_results)
def test_the_fast_path_reads_a_line_of_gpubench_with_the_same_result(result):
    line = record.encode(result)
    short = record._decode_as_written(line)
    assert short == (None if b"\\" in line else record._decode_any(line))


# ---- Numbers in eight bytes each: they equal the sequence that they were made of.


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
