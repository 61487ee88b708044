"""Collect the kernels of a trace in Chrome's format, and the operators that launched them."""

import re
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpubench.api import importer as gb

_DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_OPERATORS = 50_000  # with different shapes; further ones are joined
_MICRO = 1e-6
_MOVED = re.compile(r"\b(?:num_bytes|size):(\d{1,15})")  # in the details that JAX states of a copy
_GRAPH = "command_buffer"  # XLA's operation of a whole graph, whose kernels have names of their own


class Trace:
    """The kernels of a trace as columns, and the operators that launched them."""

    def __init__(self) -> None:
        self.kernels = {name: array("d") for name in ("start", "end", "device", "bytes")}
        self.kernel_ids, self.kernel_names = array("q"), array("q")
        self.ids, self.operators = array("q"), array("q")
        self.names: dict[Any, int] = {}
        self.devices: dict[float, str] = {}
        self.streams: set[tuple[Any, Any]] = set()

    def take(self, event: Mapping[str, Any]) -> None:
        """Add one event of the trace; others than kernels, copies, operators and names of processes are ignored."""
        args, kind = event.get("args") or {}, event.get("cat", "")
        if event.get("ph") == "M":
            self._name(event, str(args.get("name", "")))
        elif event.get("ph") == "X" and (
            kind in _DEVICE_EVENTS or (event.get("pid"), event.get("tid")) in self.streams
        ):
            self._kernel(event, args, kind)
        elif kind == "cpu_op" and "External id" in args:
            self.ids.append(int(args["External id"]))
            self.operators.append(self._number(gb.Operator(event["name"], *_signature(args))))

    def _name(self, event: Mapping[str, Any], name: str) -> None:
        if event.get("name") == "process_name" and name.startswith("/device:GPU:"):
            self.devices[float(event["pid"])] = f"cuda:{name.removeprefix('/device:GPU:').split()[0]}"
        elif event.get("name") == "thread_name" and name.startswith("Stream #"):
            self.streams.add((event.get("pid"), event.get("tid")))

    def _kernel(self, event: Mapping[str, Any], args: Mapping[str, Any], kind: str) -> None:
        begin, seconds = float(event["ts"]) * _MICRO, max(float(event.get("dur", 0)), 0.0) * _MICRO
        device = float(args.get("device", event.get("pid", 0)))
        details = _MOVED.search(str(args.get("Memset_details") or args.get("memcpy_details") or ""))
        moved = args.get("bytes", details[1] if details else 0)
        for column, value in zip(self.kernels.values(), (begin, begin + seconds, device, moved), strict=True):
            column.append(float(value))
        is_copy = kind in _DEVICE_EVENTS[1:] or bool(details)
        operation = str(args.get("hlo_op") or "")
        is_named = operation and not is_copy and not operation.startswith(_GRAPH)
        operator = gb.Operator(operation if is_named else event["name"])
        self.kernel_ids.append(-1 if is_copy else int(args.get("External id", -1)))
        self.kernel_names.append(self._number(operator))

    def _number(self, operator: gb.Operator) -> int:
        if operator not in self.names and len(self.names) >= _MOST_OPERATORS:
            operator = gb.Operator("other operators")
        return self.names.setdefault(operator, len(self.names))

    def results(self) -> Iterator[gb.TracedOperators]:
        """Yield the operators of each device with their kernels, joined by the id of the launching operator."""
        columns = {name: np.asarray(column) for name, column in self.kernels.items()}
        order = np.argsort(np.asarray(self.ids), kind="stable")
        ids, owners = np.asarray(self.ids)[order], np.asarray(self.operators)[order]
        wanted, named = np.asarray(self.kernel_ids), np.asarray(self.kernel_names)
        places = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
        is_owned = (ids[places] == wanted) & (wanted >= 0) if len(ids) else np.zeros(len(wanted), bool)
        operator = np.where(is_owned, owners[places] if len(ids) else named, named)
        for device in np.unique(columns["device"]).tolist():
            of = columns["device"] == device
            name = self.devices.get(device, f"cuda:{device:g}")
            call = np.where(is_owned, wanted, -1)[of]
            spans = (columns[column][of] for column in ("start", "end", "bytes"))
            yield gb.TracedOperators(name, tuple(self.names), operator[of], call, *spans)


def _signature(args: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for key in ("Input Dims", "Input type", "Concrete Inputs"):
        values = args.get(key) or ()
        yield tuple(
            tuple(value) if isinstance(value, list) and all(isinstance(side, int) for side in value) else str(value)
            for value in (values if isinstance(values, list) else ())
        )
