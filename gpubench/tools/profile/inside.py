"""Record the kernels and copies of this process with CUPTI's activity API; this module runs in the traced program.

CUPTI's records go to a file undecoded, so that they delay the program little. NumPy decodes them when the script has
ended, in about 0.5 µs each; cupti-python knows the offset of each field in a record. If CUPTI cannot start, the reason
is written to a file and the script runs without tracing."""

import atexit
import ctypes
import itertools
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.base import installation

MODULE = "from gpubench.tools.profile.inside import main; main()"  # the argument of `python -c`
VARIABLE = "GPUBENCH_TRACE"  # names the folder for the files of the trace
EVENT = np.dtype(
    [
        *(("start", "<u8"), ("end", "<u8"), ("bytes", "<u8"), ("name", "<i4"), ("device", "<u4"), ("stream", "<u4")),
        *(("kind", "u1"), ("copy", "u1"), ("pad", "<u2")),
    ]
)  # `start` and `end` are CUPTI's nanoseconds; `name` is a line of the file of names, -1 for copies and memory sets
KERNEL, COPY, SET = range(3)  # values of an event's `kind`
_BUFFER_BYTES = 4 * 2**20
_FLUSH_MS = 5000
_MOST_RAW_BYTES = 2**30  # records kept undecoded, some 4 million kernels; later buffers are decoded at once
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
# activity kind (CUpti_ActivityKind) → kind of event, and the name of the record's layout without its version
_KINDS = {10: (KERNEL, "kernel"), 1: (COPY, "memcpy"), 22: (COPY, "memcpy_pto_p"), 2: (SET, "memset")}
_REVEALING_KIND = 10  # kernels: their records change with nearly every version, so they reveal the version
_BUFFER_REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_BUFFER_COMPLETE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)

Layouts = dict[int, np.dtype[Any]]
Bytes = npt.NDArray[np.uint8]


class CuptiUnavailable(Exception):  # noqa: N818 - CUPTI is unusable
    """CUPTI cannot be used; the message gives the reason."""


def load() -> ctypes.CDLL:
    """Load the CUPTI library that cupti-python installs, else the system's, and return it."""
    import nvidia

    installed = [str(path) for base in nvidia.__path__ for path in Path(base).glob("*/lib/libcupti.so.*")]
    for name in (*installed, "libcupti.so.13", "libcupti.so.12"):
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise CuptiUnavailable(f"libcupti is not installed; run {installation.with_extra('counters')}")


def layouts() -> list[Layouts]:
    """Return record layouts by activity kind for each combination of versions that cupti-python knows, newest first."""
    from cupti import cupti

    versions_of_kinds = []
    for kind, (_, record_name) in _KINDS.items():
        names_by_version = {
            int(attribute.removeprefix(f"activity_{record_name}").removesuffix("_dtype")): attribute
            for attribute in dir(cupti)
            if attribute.startswith(f"activity_{record_name}")
            and attribute.removeprefix(f"activity_{record_name}")[:-6].isdecimal()
        }
        if not names_by_version:
            raise CuptiUnavailable(f"cupti-python has no layout of {record_name} records")
        versions_of_kinds.append(
            [(kind, getattr(cupti, names_by_version[number])) for number in sorted(names_by_version, reverse=True)]
        )
    return [dict(versions) for versions in itertools.product(*versions_of_kinds)]


class RecordDecoder:
    """Decodes buffers of CUPTI's records, whose layout each version changes; `name_of` reads the text at an address."""

    def __init__(self, versions: Sequence[Layouts], name_of: Callable[[int], str]) -> None:
        self._versions = list(versions)
        self._layouts = self._versions[0]
        self._is_narrowed = False  # whether `_versions` holds only layouts that fit the kernels seen
        self._name_of = name_of
        self.names: dict[int, int] = {}  # address → index
        self.texts: list[str] = []
        self.unknown = 0  # number of buffers that no version fits

    def events(self, buffer: Bytes) -> npt.NDArray[Any]:
        """Return the records of a buffer as an array of EVENT; if no version fits, none, and `unknown` counts it."""
        offsets = self._record_offsets(buffer)
        self.unknown += not offsets
        parts = [
            self._decode_kind(buffer, kind, np.asarray(kind_offsets))
            for kind, kind_offsets in offsets.items()
            if kind_offsets
        ]
        return np.concatenate(parts) if parts else np.empty(0, EVENT)

    def _record_offsets(self, buffer: Bytes) -> dict[int, list[int]]:
        """Return the byte offsets of the records in a buffer by activity kind; empty if no version fits."""
        for first, layouts in enumerate(self._versions):
            if offsets := _record_offsets(buffer, layouts):
                self._layouts = layouts
                if offsets[_REVEALING_KIND] and not self._is_narrowed:
                    self._versions = [version for version in self._versions[first:] if _record_offsets(buffer, version)]
                    self._is_narrowed = True
                return offsets
        return {}

    def _decode_kind(self, buffer: Bytes, kind: int, at: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the records of an activity kind, which begin at the byte offsets `at`, as an array of EVENT."""
        event_kind = _KINDS[kind][0]
        events = np.zeros(len(at), EVENT)
        events["kind"] = event_kind
        for field, field_name in (("start", "start"), ("end", "end"), ("device", "device_id"), ("stream", "stream_id")):
            events[field] = self._read_field(buffer, kind, at, field_name)
        events["name"] = -1
        if event_kind == KERNEL:
            events["name"] = self._name_indices(self._read_field(buffer, kind, at, "name"))
        else:
            events["bytes"] = self._read_field(buffer, kind, at, "bytes")
        if event_kind == COPY:
            events["copy"] = self._read_field(buffer, kind, at, "copy_kind")
        return events

    def _read_field(self, buffer: Bytes, kind: int, at: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """Return the field `name` of the records of an activity kind at the byte offsets `at`, shape (records,)."""
        fields = self._layouts[kind].fields
        assert fields is not None
        field_type, offset = fields[name][:2]
        aligned = buffer[: len(buffer) // field_type.itemsize * field_type.itemsize].view(field_type)
        values: npt.NDArray[Any] = aligned[(at + offset) // field_type.itemsize]
        return values

    def _name_indices(self, addresses: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the index in `texts` of the name at each address, shape (records,); a new name is appended."""
        unique, inverse = np.unique(addresses, return_inverse=True)
        for address in unique.tolist():
            if address not in self.names:
                self.names[address] = len(self.texts)
                self.texts.append(self._name_of(address) if address else "")
        return np.asarray([self.names[address] for address in unique.tolist()])[inverse]


def _record_offsets(buffer: Bytes, layouts: Layouts) -> dict[int, list[int]]:
    kinds = memoryview(buffer[: len(buffer) // 4 * 4].tobytes()).cast("I")
    sizes = {kind: layout.itemsize for kind, layout in layouts.items()}
    offsets: dict[int, list[int]] = {kind: [] for kind in sizes}
    at, end = 0, len(buffer)
    while at < end:
        kind = kinds[at >> 2]
        size = sizes.get(kind)
        if size is None:
            return {}
        offsets[kind].append(at)
        at += size
    return offsets if at == end else {}


class Tracer:
    """Records kernels and copies with CUPTI's activity API, from `start` to `stop`, into files in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Load CUPTI and open the files of the trace; raises CuptiUnavailable if CUPTI cannot be used."""
        self._lib = load()
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype, self._libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._records = RecordDecoder(layouts(), lambda address: ctypes.string_at(address).decode(errors="replace"))
        self._folder = folder
        self._events = (folder / "events").open("ab", buffering=0)
        self._names = (folder / "names").open("a", encoding="utf-8")
        self._raw = (folder / "raw").open("w+b", buffering=0)
        self._sizes: list[int] = []  # bytes of each undecoded buffer in the file
        self._written = 0
        self._dropped = 0
        self._clocks: list[tuple[int, int]] = []
        self._callbacks = (
            _BUFFER_REQUEST(self._provide_buffer),
            _BUFFER_COMPLETE(self._take_buffer),
        )  # CUPTI holds no reference to them

    def start(self) -> None:
        """Start recording. Raises CuptiUnavailable if CUPTI refuses."""
        self._call("cuptiActivityRegisterCallbacks", *self._callbacks)
        for kind in _KINDS:
            self._call("cuptiActivityEnable", kind)
        self._call("cuptiActivityFlushPeriod", _FLUSH_MS)
        self._read_clocks()
        self._describe("the program ended (by os._exit or a signal) before its records could be read")

    def stop(self) -> None:
        """Stop recording, decode all records and write their events."""
        self._lib.cuptiActivityFlushAll(_FORCED)
        for kind in _KINDS:
            self._lib.cuptiActivityDisable(kind)
        self._read_clocks()
        self._raw.seek(0)
        for size in self._sizes:
            self._decode(self._raw.read(size))
        self._describe(reason="")

    def _call(self, name: str, *arguments: Any) -> None:
        """Call the function `name` of CUPTI. Raises CuptiUnavailable with CUPTI's message if it fails."""
        status = getattr(self._lib, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._lib.cuptiGetResultString(status, ctypes.byref(text))
            raise CuptiUnavailable(f"{name}: {(text.value or b'').decode() or f'status {status}'}")

    def _read_clocks(self) -> None:
        now = ctypes.c_uint64()
        before = time.monotonic_ns()
        self._call("cuptiGetTimestamp", ctypes.byref(now))
        self._clocks.append((now.value, (before + time.monotonic_ns()) // 2))

    def _describe(self, reason: str) -> None:
        """Write the description of the trace; `reason` says why it is incomplete, and is empty if it is complete."""
        about = {"clocks": self._clocks, "dropped": self._dropped, "unknown": self._records.unknown, "reason": reason}
        write_description(self._folder, about)

    def _provide_buffer(self, buffer: Any, size: Any, most_records: Any) -> None:
        """Give CUPTI an empty buffer: set its address, its size, and 0 (no limit) as the largest number of records."""
        buffer[0] = self._libc.malloc(_BUFFER_BYTES)
        size[0], most_records[0] = _BUFFER_BYTES, 0

    def _take_buffer(self, context: int | None, stream: int, buffer: int, size: int, valid: int) -> None:
        """Store the first `valid` bytes of a full buffer, free it, and count the records that CUPTI dropped."""
        del size
        if sum(self._sizes) + valid <= _MOST_RAW_BYTES:
            self._store_undecoded((ctypes.c_char * valid).from_address(buffer))
        else:
            self._decode(ctypes.string_at(buffer, valid))
        self._libc.free(buffer)
        dropped = ctypes.c_size_t()
        if not self._lib.cuptiActivityGetNumDroppedRecords(ctypes.c_void_p(context), stream, ctypes.byref(dropped)):
            self._dropped += dropped.value

    def _store_undecoded(self, data: Any) -> None:
        """Write a ctypes array of bytes to the file `raw`, because decoding would delay the program more."""
        remaining = memoryview(data).cast("B")
        while remaining:
            remaining = remaining[self._raw.write(remaining) :]
        self._sizes.append(len(data))

    def _decode(self, data: bytes) -> None:
        self._events.write(self._records.events(np.frombuffer(data, np.uint8)).tobytes())
        new = self._records.texts[self._written :]
        if new:
            self._names.write("".join(f"{json.dumps(text)}\n" for text in new))
            self._names.flush()
            self._written += len(new)


def write_description(folder: Path, about: dict[str, Any]) -> None:
    """Replace the description of the trace in the folder atomically by `about`, written as JSON."""
    partial = folder / "about.part"
    partial.write_text(json.dumps(about), encoding="utf-8")
    partial.replace(folder / "about")


def main() -> None:
    """Run the Python script that the arguments name, as Python would, and trace it into the folder GPUBENCH_TRACE."""
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    folder = Path(os.environ[VARIABLE])
    try:
        tracer = Tracer(folder)
        tracer.start()
        atexit.register(tracer.stop)  # runs after the script's threads have ended
    except (CuptiUnavailable, ImportError, OSError) as error:
        write_description(folder, {"clocks": [], "dropped": 0, "unknown": 0, "reason": f"{error}"})
    runpy.run_path(sys.argv[0], run_name="__main__")
