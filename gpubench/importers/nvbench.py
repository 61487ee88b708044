"""Import the output of a benchmark that is built with NVIDIA's nvbench: the means of each state, as JSON or csv.

The options are `--json` and `--csv`. Both forms are in seconds and B/s, so that nothing is converted; only the output
for people is in GiB/s. The JSON keeps the single samples in separate binary files, which are not read: a series has one
value, nvbench's summary."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.api.importer import BadOutput, Case, Device, Imported, Importer, Params, Result, Series, SuiteInfo

from . import _parsing as parsing

_SUITE = "nvbench"
_NEWEST_JSON = 1  # newest known major version of the JSON format
_CSV_HEAD = "Benchmark,Device,Device Name,"
# nvbench's hint → unit and which way is better
_HINTS = {"duration": ("s", "less"), "item_rate": ("item/s", "more"), "byte_rate": ("B/s", "more")}
# column of the csv → tag of the same summary in the JSON
_TAGS = {
    "GPU Time (sec)": "cold/time/gpu/mean",
    "Batch GPU (sec)": "batch/time/gpu/mean",
    "CPU Time (sec)": "cold/time/cpu/mean",
    "Elem/s (elem/sec)": "cold/bw/item_rate",
    "GlobalMem BW (bytes/sec)": "cold/bw/global/bytes_per_second",
}
_ORDER = tuple(_TAGS.values())  # the first of these that exists is the headline


@dataclass(frozen=True, slots=True)
class Nvbench:
    """Importer of the output of a benchmark that is built with nvbench."""

    summary: str = "nvbench (NVIDIA): benchmarks built with it; JSON or csv"

    def accepts(self, text: str) -> bool:
        """Return whether the text has the head of the csv, or the JSON's benchmarks with its version."""
        return text.lstrip().startswith(_CSV_HEAD) or bool(
            re.match(r"\s*\{", text) and re.search(r'"benchmarks"\s*:', text) and re.search(r'"nvbench"\s*:', text)
        )

    def read(self, text: str) -> Imported:
        """Return the content of the output, with a result per state of each benchmark.

        The axes are those of the benchmark."""
        return _parse_csv(text.strip()) if text.lstrip().startswith(_CSV_HEAD) else _parse_json(text)


def _imported(devices: Sequence[Device], results: Sequence[Result], versions: Sequence[tuple[str, str]]) -> Imported:
    """Return the results as a suite; `versions` are names and versions of software."""
    if not results:
        raise BadOutput("no benchmark has a state")
    info = SuiteInfo(_SUITE, "imported: benchmarks as nvbench measured them")
    return Imported(info, tuple(devices), tuple(results), tuple(versions))


def _axis_value(text: str) -> str | int | float:
    """Return the number that an axis value is, else the text itself."""
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,18}(\.\d+)?([eE][+-]?\d{1,2})?", text):
        return float(text)
    return text


def _headline_first(series: dict[str, Series]) -> tuple[Series, ...]:
    """Return the series, by tag in `series`, with those of _ORDER first and in its order; the first is the headline."""
    return tuple(series[name] for name in sorted(series, key=lambda tag: (tag not in _ORDER, _rank_of_tag(tag))))


def _rank_of_tag(tag: str) -> int:
    """Return the position of a tag in _ORDER; behind its end for any other tag."""
    return _ORDER.index(tag) if tag in _ORDER else len(_ORDER)


def _skipped_result(case: Case, ids: tuple[str, ...], reason: str) -> Result:
    """Return the result of a state that the benchmark skipped; an empty `reason` gets a general text."""
    return Result(case, ids, "skipped", cause="skipped", reason=reason or "skipped by the benchmark")


def _parse_json(text: str) -> Imported:
    """Return the content of the JSON form. Raises BadOutput if it is damaged or newer than the known versions."""
    body = parsing.json_object(text)
    version = parsing.json_value(parsing.json_value(body, "meta", dict), "version", dict)
    if parsing.json_value(parsing.json_value(version, "json", dict), "major", int) > _NEWEST_JSON:
        raise BadOutput(f"JSON of version {version['json'].get('string')}, but gpubench reads version {_NEWEST_JSON}")
    devices = {parsing.json_value(item, "id", int): _device(item) for item in parsing.json_value(body, "devices", list)}
    results = [
        _state_result(parsing.json_value(bench, "name", str), state, devices)
        for bench in parsing.json_value(body, "benchmarks", list)
        for state in parsing.json_value(bench, "states", list)
    ]
    tool = parsing.json_value(parsing.json_value(version, "nvbench", dict), "string", str)
    return _imported(tuple(devices.values()) or (parsing.UNSTATED,), results, (("nvbench", tool),))


def _device(item: dict[str, Any]) -> Device:
    """Return a device of the JSON, the object `item`, with the facts that it states."""

    def number(key: str) -> int:
        """Return a whole number of the device; 0 if it is missing."""
        return item[key] if isinstance(item.get(key), int) else 0

    details = [("clock.sm_hz", str(number("sm_default_clock_rate")))] if number("sm_default_clock_rate") else []
    details += [("ecc", "on" if item["ecc_state"] else "off")] if isinstance(item.get("ecc_state"), bool) else []
    return parsing.make_device(
        f"cuda:{item['id']}",
        parsing.json_value(item, "name", str),
        arch=f"sm_{number('sm_version') // 10}" if number("sm_version") else "",
        memory_bytes=number("global_memory_size"),
        cache_bytes=number("l2_cache_size"),
        units=number("number_of_sms"),
        details=tuple(details),
    )


def _state_result(bench: str, state: dict[str, Any], devices: dict[int, Device]) -> Result:
    """Return the result of a state of the benchmark `bench` in the JSON; `state` is its object."""
    device = devices.get(state["device"]) if isinstance(state.get("device"), int) else None
    ids = (device.id if device else parsing.UNSTATED.id,)
    axes = state.get("axis_values") or []
    if not isinstance(axes, list):
        raise BadOutput(f"the axes of a state of {bench} have another form than in the known versions")
    params = tuple(
        (parsing.json_value(axis, "name", str), _axis_value(parsing.json_value(axis, "value", str))) for axis in axes
    )
    case = Case(_SUITE, bench, params)
    if state.get("is_skipped"):
        return _skipped_result(case, ids, str(state.get("skip_reason") or ""))
    series = dict(_summary_series(bench, state.get("summaries") or []))
    if not series:
        raise BadOutput(f"a state of {bench} has no times")
    return Result(case, ids, "ok", series=_headline_first(series))


def _summary_series(bench: str, summaries: object) -> Iterator[tuple[str, Series]]:
    """Yield tag and series of each summary of a state that is a duration or a rate, except its deviations."""
    if not isinstance(summaries, list):
        raise BadOutput(f"the summaries of {bench} have another form than in the known versions")
    for item in summaries:
        hint = item.get("hint") if isinstance(item, dict) else None
        tag = parsing.json_value(item, "tag", str)
        if (
            hint in _HINTS
            and tag.startswith("nv/")
            and not tag.endswith(("walltime", "stdev/absolute", "iqr/absolute"))
        ):
            data = parsing.json_value(item, "data", list)
            values = [parsing.json_value(cell, "value", str) for cell in data if isinstance(cell, dict)]
            if len(values) != 1:
                raise BadOutput(f"{tag} of {bench} is not one value")
            unit, better = _HINTS[hint]
            value = parsing.number(values[0], f"{tag} of {bench}")
            name = tag.removeprefix("nv/")
            yield name, Series(name, unit, (value,), better="more" if better == "more" else "less")


def _parse_csv(text: str) -> Imported:
    """Return the content of the csv form. Raises BadOutput if it is damaged."""
    rows = list(csv.reader(text.splitlines()))
    head = rows[0]
    if "Skipped" not in head:
        raise BadOutput("line 1: there is no column Skipped")
    devices: dict[str, Device] = {}
    results = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(head):
            raise BadOutput(f"line {number}: {len(row)} columns where the head has {len(head)}")
        if row[1]:
            devices.setdefault(
                row[1], parsing.make_device(f"cuda:{parsing.whole_number(row[1], f'line {number}')}", row[2])
            )
        device = devices.get(row[1], parsing.UNSTATED)
        results.append(_row_result(f"line {number}", head, row, device))
    return _imported(tuple(devices.values()) or (parsing.UNSTATED,), results, ())


def _row_result(where: str, head: Sequence[str], row: Sequence[str], device: Device) -> Result:
    """Return the result of a row of the csv on this device; `where` names the line in messages."""
    mark = head.index("Skipped")
    axes: Params = tuple(
        (name, _axis_value(cell))
        for name, cell in zip(head[3:mark], row[3:mark], strict=True)
        if not name.endswith(" (pow2)")
    )
    case = Case(_SUITE, row[0], axes)
    if row[mark] == "Yes":
        return _skipped_result(case, (device.id,), "")
    series: dict[str, Series] = {}
    for name, cell in zip(head[mark + 1 :], row[mark + 1 :], strict=True):
        if name in _TAGS and cell:
            unit = "s" if name.endswith("(sec)") else "B/s" if "bytes" in name else "item/s"
            value = parsing.number(cell, where)
            series[_TAGS[name]] = Series(_TAGS[name], unit, (value,), better="less" if unit == "s" else "more")
    if not series:
        raise BadOutput(f"{where}: there are no times for {row[0]}")
    return Result(case, (device.id,), "ok", series=_headline_first(series))


importer: Importer = Nvbench()
