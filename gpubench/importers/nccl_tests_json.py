"""Import the JSON of nccl-tests (`-J FILE`, versions 1 and 2): the cases of its text, with the digits that it rounds.

The names come from `src/util.cu`: `time` in µs, `alg_bw` and `bus_bw` in GB of 10⁹ bytes. Version 2 can have the time
of each iteration. `devices` has one entry for each process, of its first GPU."""

import math
import re
from typing import Any

from gpubench.api import importer as gb

_RATES = (("bus_bw", "busbw", "GB/s"), ("alg_bw", "algbw", "GB/s"), ("time", "time", "us"))
_QUANTITIES = (*_RATES, ("cpu_time", "cputime", "us"))
_MOST_GPUS = 2**16  # of one communicator: a wrong number would fill the memory
_SMALL = 65536  # below it the time is the headline, as for the text


def _add_place(output: gb.Output, name: str, params: gb.Params, ids: tuple[str, ...], figures: dict[str, Any]) -> None:
    size, unchecked = dict(params)["size_bytes"], figures.get("nwrong") is None
    wrong = 0.0 if unchecked else gb.measured_number(figures, "nwrong")
    stated = {key: gb.measured_number(figures, key) for key, _, _ in _QUANTITIES if key in figures}
    times = gb.json_value(figures, "times_us", list, [])
    iterations = [gb.quantity("iterations", "us", *times)] if times else []
    quantities = [*gb.quantities(stated, _QUANTITIES), *iterations]
    series = sorted(quantities, key=lambda one: one.unit != "s" and int(size) < _SMALL)
    reason = f"{wrong:g} values are out of bounds" if wrong > 0 else ""
    failure = {"status": "failed", "cause": "wrong-answer", "reason": reason} if reason else {}
    output.add(name, params, series, ids, notes=(("validation", "off"),) if unchecked else (), **failure)


def _read(text: str) -> gb.Imported:
    body = gb.json_object(text)
    if (version := gb.json_value(body, "version", int)) not in (1, 2):
        raise gb.BadOutput(f"JSON of version {version}, but gpubench reads versions 1 and 2")
    output = gb.Output("nccl-tests", "imported: collectives as nccl-tests measured them")
    output.versions["nccl"] = str(gb.json_value(body, "nccl_version", int))
    program = re.fullmatch(
        r"(?s:.*\W)?(\w+?)_perf(?:_mpi)?", str(gb.json_value(body, "args", list)[:1] or "").strip("[]'\"")
    )
    ids: list[str] = []
    gpus_per_process = math.prod(gb.json_value(body, f"config/{count}", int, 1) for count in ("nthreads", "ngpus"))
    processes = gb.json_value(body, "config/devices", list, [])
    if gpus_per_process < 1 or gpus_per_process * len(processes) > _MOST_GPUS:
        raise gb.BadOutput(f"{gpus_per_process} GPUs in each of {len(processes)} processes are not possible")
    for process in processes:
        first = gb.json_value(process, "device", int)
        for device_id in (f"cuda:{number}" for number in range(first, first + gpus_per_process)):
            ids.append(device_id)
            output.devices[device_id] = gb.make_device(device_id, gb.json_value(process, "device_info", str))
    for result in gb.json_value(body, "results", list):
        params: list[tuple[str, str | int]] = [("size_bytes", gb.json_value(result, "size", int))]
        params += [(name, gb.json_value(result, name, str).strip()) for name in ("type", "redop", "root")]
        params += [("ranks", len(ids))] if ids else []
        for place, key in (("out", "out_of_place"), ("in", "in_place")):
            if figures := gb.json_value(result, key, dict, {}):
                figures = figures | gb.json_value(result, f"{key}_per_iter", dict, {})
                where = (*params, ("place", place))
                _add_place(
                    output,
                    program[1] if program else "unnamed",
                    where,
                    tuple(dict.fromkeys(ids)) or ("unknown",),
                    figures,
                )
    title, by = "Bus bandwidth", ("place",)
    return output.imported(gb.View("curve", title, output.cases(), x="size_bytes", by=by, series="busbw", log_x=True))


_ACCEPTS = gb.has(r'"nccl_version"\s*:', r'"out_of_place"\s*:', r'"bus_bw"\s*:')
importer: gb.Importer = gb.Reader("nccl-tests (NVIDIA): -J FILE; JSON", _ACCEPTS, _read)
