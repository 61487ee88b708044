"""Import Google Benchmark's JSON (`--benchmark_format=json`, `--benchmark_out`).

The names come from its docs/user_guide.md, "Output Formats". Each repetition is a sample: the time per iteration in the
benchmark's unit. Where only aggregates are reported, the median is the sample. Counters of the user have no unit."""

from typing import Any

from gpubench.api import importer as gb

_TIMES, _RATES = ("real_time", "cpu_time"), (("bytes_per_second", "B/s"), ("items_per_second", "item/s"))
_KNOWN = {"repetitions", "repetition_index", "threads", "iterations", *_TIMES, *(name for name, _ in _RATES)}
_KNOWN |= {"family_index", "per_family_instance_index"}


def _add_benchmark(output: gb.Output, name: str, rows: list[dict[str, Any]]) -> None:
    if messages := [row.get("error_message") for row in rows if row.get("error_occurred")]:
        output.add_unmeasured(name, (), (gb.UNSTATED.id,), "error", str(messages[0] or "it reported an error"))
        return
    if (unit := gb.json_value(rows[0], "time_unit", str)) not in ("ns", "us", "ms", "s"):
        raise gb.BadOutput(f"the time is in {unit[:40]!r}, which is not a known unit")
    series = [gb.quantity(key, unit, *(gb.measured_number(row, key) for row in rows)) for key in _TIMES]
    rates = [(key, si_unit) for key, si_unit in _RATES if all(key in row for row in rows)]
    series += [gb.quantity(key, si_unit, *(gb.measured_number(row, key) for row in rows)) for key, si_unit in rates]
    label = gb.json_value(rows[0], "label", str, "")
    output.add(name, (), series, notes=(("label", label),) if label else ())
    counters = (key for key, value in rows[0].items() if isinstance(value, int | float) and key not in _KNOWN)
    output.left_out.update(dict.fromkeys(f"{name} {key}" for key in counters))


def _read(text: str) -> gb.Imported:
    body = gb.json_object(text)
    output = gb.Output("google-benchmark", "imported: functions as Google Benchmark measured them")
    if version := gb.json_value(body, "context/library_version", str, ""):
        output.versions["google-benchmark"] = version
    repeated: dict[str, list[dict[str, Any]]] = {}
    medians: dict[str, list[dict[str, Any]]] = {}
    for row in gb.json_value(body, "benchmarks", list):
        name = gb.json_value(row, "run_name", str, gb.json_value(row, "name", str))
        if row.get("run_type") != "aggregate":
            repeated.setdefault(name, []).append(row)
        elif row.get("aggregate_name") == "median":
            medians[name] = [row]
    for name, rows in (medians | repeated).items():
        with gb.place(name[:200]):
            _add_benchmark(output, name, rows)
    return output.imported()


_ACCEPTS = gb.has(r'"benchmarks"\s*:\s*\[', r'"library_build_type"\s*:')
importer: gb.Importer = gb.Reader("Google Benchmark: functions and their repetitions; JSON", _ACCEPTS, _read)
