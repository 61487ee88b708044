"""Import NVIDIA's nvbandwidth: matrices of bandwidths and latencies, as text or JSON, from one process or many.

`-j` writes the JSON. GB are 1e9 bytes, and each copied byte counts once (payload). A cell is the median of its samples,
or with `-m` their mean; the samples themselves are not printed."""

import re

from gpubench.api import importer as gb

_DEVICE = re.compile(r"(?m)^(?:Process (\d+) \((.+?)\): device|Device) (\d+): (.+?)(?: \(([\da-f:]{10,14})\))?:?$")
_VERSIONS = {"nvbandwidth Version": "nvbandwidth", "version": "nvbandwidth"}
_VERSIONS |= {"CUDA Runtime Version": "cuda.runtime", "Driver Version": "nvidia.driver"}


def _add_devices(output: gb.Output, text: str) -> None:
    for process, host, index, name, pci in _DEVICE.findall(text):
        device_id = f"process{process}/cuda:{index}" if process else f"cuda:{index}"
        details = (("hostname", host), ("device", index)) if process else ()
        output.devices[device_id] = gb.make_device(device_id, name, pci=pci, details=details)


def _add_text(output: gb.Output, text: str) -> None:
    _add_devices(output, text)
    facts = re.findall(r"(?m)^(.+?): *(.*)", text)
    output.versions = {_VERSIONS[name]: value for name, value in facts if name in _VERSIONS}
    preface, *tests = re.split(r"^Running (\w+)\.$", text, flags=re.MULTILINE)
    for test, body in zip(tests[::2], tests[1::2], strict=True):
        message, *matrices = re.split(r"(?m)^((?:memcpy|memory latency)\b.* \((?:GB/s|ns)\))$", body)
        reasons = [line for line in message.strip().split("\n") if line and not line.startswith("Waived")]
        if "\nSUM " in preface + message or body.count("\nSUM ") > len(matrices) / 2 or not matrices + reasons:
            raise gb.BadOutput(f"the matrix of {test} is missing or damaged")
        if not matrices:
            output.add_unmeasured(test, (), output.devices, "no-result", reasons[0])
        for description, matrix in zip(matrices[::2], matrices[1::2], strict=True):
            head, *rows = [line.split() for line in re.findall(r"(?m)^\d.*", matrix)] or [[]]
            is_whole = all(len(cells) == len(head) + 1 and cells[0] == str(row) for row, cells in enumerate(rows))
            total = re.search(r"(?m)^SUM (?:\S+ )?(.*)", matrix)
            whole = [cells[1:] for cells in rows] if is_whole else []
            _add_matrix(output, test, description, whole, total[1] if total else "")


def _add_json(output: gb.Output, text: str) -> None:
    body = gb.json_value(gb.json_object(text), "nvbandwidth", dict)
    output.versions = {name: str(body[key]) for key, name in _VERSIONS.items() if key in body}
    _add_devices(output, "\n".join(f"Device {device}" for device in gb.json_value(body, "GPU Device list", list, [])))
    for test in gb.json_value(body, "testcases", list):
        name = gb.json_value(test, "name", str)
        if "bandwidth_matrix" in test:
            rows = [row if isinstance(row, list) else [] for row in gb.json_value(test, "bandwidth_matrix", list)]
            description, total = gb.json_value(test, "bandwidth_description", str), str(test.get("sum", ""))
            _add_matrix(output, name, description.strip(), rows, total)
        elif (status := gb.json_value(test, "status", str)) in ("Waived", "Not Found"):
            output.add_unmeasured(name, (), output.devices, status.lower().replace(" ", "-"), status, "skipped")
        else:
            output.add_unmeasured(name, (), output.devices, "no-result", str(test.get("error", status)))


def _add_matrix(output: gb.Output, test: str, description: str, rows: list[list[str]], total: str) -> None:
    if not rows or not rows[0] or len({len(cells) for cells in rows}) > 1:
        raise gb.BadOutput(f"a row of {test} is incomplete")
    unit = description.rpartition(" (")[2].removesuffix(")")
    if not (quantity := {"GB/s": "bandwidth", "ns": "latency"}.get(unit)):
        raise gb.BadOutput(f"{test}: neither GB/s nor ns in {description[:80]!r}")
    if part := re.search(r" (Read1|Read2|Write1|Write2|Total) bandwidth", description):  # the last of several in JSON
        rows, test = rows[-len(rows[0]) :], f"{test}_{part[1].lower()}"
    with gb.place(test):
        printed = ((row, column, cell) for row, cells in enumerate(rows) for column, cell in enumerate(cells))
        measured = [(row, column, gb.number(str(cell))) for row, column, cell in printed if cell != "N/A"]
        added, rounding = sum(value for _, _, value in measured), 0.005 * (len(measured) + 1)  # two decimals each
        if total and abs(added - gb.number(total)) > rounding + 1e-5 * abs(gb.number(total)):
            raise gb.BadOutput("the cells do not add up to its SUM: edited or damaged")
    devices = dict(enumerate(output.devices))
    for row, column, value in measured:
        places = (row, column) if "GPU(row)" in description and row != column else (column,)
        ids = (devices.get(place, f"cuda:{place}") for place in places)
        output.add(test, (("row", row), ("column", column)), [gb.quantity(quantity, unit, value)], ids)


def _read(text: str) -> gb.Imported:
    output = gb.Output("nvbandwidth", "imported: copies between host and GPUs as nvbandwidth measured them")
    _add_json(output, text) if '"nvbandwidth"' in text else _add_text(output, gb.clean(text))
    output.versions = {key: re.sub(r"^(\d\d)0?(\d\d?)0$", r"\1.\2", value) for key, value in output.versions.items()}
    output.results.sort(key=lambda result: not result.series)
    pairs = dict.fromkeys(result.case.name for result in output.results if result.case.devices > 1)
    return output.imported(*(gb.View("matrix", name, (name,), "column", "row") for name in pairs))


_TEXT, _JSON = r"nvbandwidth Version:|Running \w+\.[ \t]*\n[ \t\n]*memcpy ", r'"nvbandwidth"[ \t]*:[ \t]*\{?[ \t]*$'
_SUMMARY = "nvbandwidth (NVIDIA): copies between host and GPUs, and latencies; text or JSON"
importer: gb.Importer = gb.Reader(_SUMMARY, gb.has(rf"^[ \t]*(?:{_TEXT}|{_JSON})"), _read)
