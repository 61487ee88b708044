"""Import pytest-benchmark's JSON (`--benchmark-json`, `--benchmark-save`); the names come from version 5.

A sample is the mean time of a round, in seconds. Files without the rounds (`--benchmark-save` does not keep them) have
the median with minimum, mean and maximum."""

from typing import Any

from gpubench.api import importer as gb

_STATISTICS = tuple((key, key, "s") for key in ("median", "min", "mean", "max"))


def _params(item: dict[str, Any]) -> gb.Params:
    """Return the parameters of a test: numbers and texts as they are, others by their printed form."""
    values = gb.json_value(item, "params", dict, {}) or {"param": item.get("param")}
    stated = {name: value for name, value in values.items() if value is not None}
    plain = (int, float, str)
    return tuple(
        (name, value if isinstance(value, plain) and not isinstance(value, bool) else str(value))
        for name, value in stated.items()
    )


def _read(text: str) -> gb.Imported:
    body = gb.json_object(text)
    output = gb.Output("pytest-benchmark", "imported: tests as pytest-benchmark measured them")
    output.versions["pytest-benchmark"] = gb.json_value(body, "version", str)
    if python := gb.json_value(body, "machine_info/python_version", str, ""):
        output.versions["python"] = python
    device = gb.make_device("cpu:0", gb.json_value(body, "machine_info/cpu/brand_raw", str, ""))
    output.devices[device.id] = device
    for item in gb.json_value(body, "benchmarks", list):
        name, stats = gb.json_value(item, "fullname", str).partition("[")[0], gb.json_value(item, "stats", dict)
        with gb.place(name[:200]):
            rounds = [gb.measured_number({"data": value}, "data") for value in gb.json_value(stats, "data", list, [])]
            summary = {key: gb.measured_number(stats, key) for key, _, _ in _STATISTICS}
            series = [gb.quantity("time", "s", *rounds)] if rounds else gb.quantities(summary, _STATISTICS)
            output.add(name, _params(item), series, (device.id,))
    return output.imported()


_ACCEPTS = gb.has(r'"benchmarks"\s*:\s*\[', r'"machine_info"\s*:', r'"commit_info"\s*:')
importer: gb.Importer = gb.Reader("pytest-benchmark: tests and their rounds; JSON", _ACCEPTS, _read)
