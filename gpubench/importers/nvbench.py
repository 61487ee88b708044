"""Import the output of a benchmark that is built with NVIDIA's nvbench: the means of each state, as JSON or csv.

The options are `--json` and `--csv`. Both forms are in seconds and B/s, so that nothing is converted; only the output
for people is in GiB/s. The JSON keeps the single samples in separate binary files, which are not read: a series has one
value, nvbench's summary."""

import csv
from typing import Any

from gpubench.api import importer as gb

_UNITS = {"duration": "s", "item_rate": "item/s", "byte_rate": "B/s"}  # by the hint in the JSON
_COLUMNS = (  # column of the csv, tag of the same summary in the JSON, unit; the first that exists is the headline
    ("GPU Time (sec)", "cold/time/gpu/mean", "s"),
    ("Batch GPU (sec)", "batch/time/gpu/mean", "s"),
    ("CPU Time (sec)", "cold/time/cpu/mean", "s"),
    ("Elem/s (elem/sec)", "cold/bw/item_rate", "item/s"),
    ("GlobalMem BW (bytes/sec)", "cold/bw/global/bytes_per_second", "B/s"),
)
_FACTS = ("sm_default_clock_rate", "sm_version", "global_memory_size", "l2_cache_size", "number_of_sms")
_SKIPPED = "skipped by the benchmark"


def _read_csv(output: gb.Output, text: str) -> None:
    head, *rows = csv.reader(text.strip().splitlines())
    if "Skipped" not in head:
        raise gb.BadOutput("line 1: there is no column Skipped")
    mark = head.index("Skipped")
    for number, cells in enumerate(rows, 2):
        with gb.place(f"line {number}"):
            figures = {name: cell for name, cell in gb.row(head, cells).items() if cell}
            device = f"cuda:{gb.whole_number(cells[1])}" if cells[1] else gb.UNSTATED.id
            output.devices.setdefault(device, gb.make_device(device, cells[2] if cells[1] else ""))
            pairs = zip(head[3:mark], cells[3:mark], strict=True)
            axes = tuple((name, gb.number_or_text(cell)) for name, cell in pairs if not name.endswith(" (pow2)"))
            if cells[mark] == "Yes":
                output.add_unmeasured(cells[0], axes, (device,), "skipped", _SKIPPED, "skipped")
            else:
                output.add(cells[0], axes, gb.quantities(figures, _COLUMNS), (device,))


def _read_json(output: gb.Output, text: str) -> None:
    body = gb.json_object(text)
    if (version := gb.json_value(body, "meta/version/json/major", int)) > 1:
        raise gb.BadOutput(f"JSON of version {version}, but gpubench reads version 1")
    output.versions["nvbench"] = gb.json_value(body, "meta/version/nvbench/string", str)
    output.devices = {device.id: device for device in map(_device, gb.json_value(body, "devices", list))}
    for bench in gb.json_value(body, "benchmarks", list):
        name = gb.json_value(bench, "name", str)
        for state in gb.json_value(bench, "states", list):
            listed = gb.json_value(state, "axis_values", list, [])
            axes = tuple(
                (gb.json_value(a, "name", str), gb.number_or_text(gb.json_value(a, "value", str))) for a in listed
            )
            ids = (output.devices.get(f"cuda:{state.get('device')}", gb.UNSTATED).id,)
            if state.get("is_skipped"):
                output.add_unmeasured(name, axes, ids, "skipped", str(state.get("skip_reason") or _SKIPPED), "skipped")
            else:
                output.add(name, axes, _means(state), ids)


def _device(item: dict[str, Any]) -> gb.Device:
    device_id, name = f"cuda:{gb.json_value(item, 'id', int)}", gb.json_value(item, "name", str)
    clock, sm, *sizes = (gb.json_value(item, key, int, 0) for key in _FACTS)
    details = [("clock.sm_hz", str(clock))] if clock else []
    details += [("ecc", "on" if item["ecc_state"] else "off")] if isinstance(item.get("ecc_state"), bool) else []
    facts = dict(zip(("memory_bytes", "cache_bytes", "units"), sizes, strict=True))
    return gb.make_device(device_id, name, arch=f"sm_{sm // 10}" if sm else "", details=tuple(details), **facts)


def _means(state: object) -> list[gb.Series]:
    means = {}
    for item in gb.json_value(state, "summaries", list, []):
        unit, tag = _UNITS.get(gb.json_value(item, "hint", str, "")), gb.json_value(item, "tag", str)
        if unit and tag.startswith("nv/") and not tag.endswith(("walltime", "stdev/absolute", "iqr/absolute")):
            data, name = gb.json_value(item, "data", list), tag.removeprefix("nv/")
            if len(data) != 1:
                raise gb.BadOutput(f"{tag} is not one value")
            means[name] = gb.quantity(name, unit, gb.json_value(data[0], "value", str))
    return [*(means.pop(tag) for _, tag, _ in _COLUMNS if tag in means), *means.values()]


def _read(text: str) -> gb.Imported:
    output = gb.Output("nvbench", "imported: benchmarks as nvbench measured them")
    (_read_json if text.lstrip().startswith("{") else _read_csv)(output, text)
    return output.imported()


_ACCEPTS = gb.has(r'\A\s*(?:Benchmark,Device,Device Name,|\{(?=[\s\S]*"benchmarks"\s*:)[\s\S]*"nvbench"\s*:)')
importer: gb.Importer = gb.Reader("nvbench (NVIDIA): benchmarks built with it; JSON or csv", _ACCEPTS, _read)
