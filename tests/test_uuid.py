"""A GPU's UUID: whole, truncated by CuPy at its first zero byte, or unavailable."""

import sys
import uuid
from types import SimpleNamespace

import pytest
from _modules import room_module

UUID_OF = room_module("backends", "_gpu_facts").uuid_of
WHOLE = uuid.UUID("a2a62206-62ff-9cdf-5f16-4a142da77ed2")
HOLED = uuid.UUID("4558bb29-d6ee-af00-25e8-724ad400f16c")
PCI = "0000:00:06.0"


@pytest.fixture
def nvml(monkeypatch):
    """Yield a driver that knows one GPU, of the UUID that a test gives it."""

    class NVMLError(Exception):
        pass

    def handle(pci):
        if pci != PCI:
            raise NVMLError("not found")
        return pci

    opened = []
    stand_in = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: opened.append(1),
        nvmlShutdown=lambda: opened.pop(),
        nvmlDeviceGetHandleByPciBusId=handle,
        nvmlDeviceGetUUID=lambda _: f"GPU-{stand_in.uuid}",
        uuid=HOLED,
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    yield stand_in
    assert not opened


def as_cupy_gives_it(raw):
    """Return `char[16]` as Cython converts it to bytes: up to the first zero."""
    return {"uuid": raw.bytes.partition(b"\0")[0]}


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (as_cupy_gives_it(WHOLE), f"GPU-{WHOLE}"),
        ({"uuid": WHOLE.bytes + b"\x07\x08"}, f"GPU-{WHOLE}"),  # bytes after it in memory
        ({}, ""),  # a runtime without UUIDs
    ],
)
def test_a_uuid_without_a_zero_byte_is_used_unchanged(monkeypatch, properties, text):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert UUID_OF(properties, PCI) == text
    slice_of = {"name": b"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "uuid": bytes(range(1, 17))}
    assert UUID_OF(slice_of, "").startswith("MIG-01020304-"), "the prefix by which NVML finds it"
    assert UUID_OF({**slice_of, "name": b"NVIDIA H100 80GB HBM3"}, "").startswith("GPU-01020304-")


@pytest.mark.parametrize("place", range(16))
def test_a_uuid_that_ends_at_a_zero_is_completed_by_nvml(nvml, place):
    raw = bytearray(WHOLE.bytes)
    raw[place] = 0
    nvml.uuid = uuid.UUID(bytes=bytes(raw))
    assert UUID_OF(as_cupy_gives_it(nvml.uuid), PCI) == f"GPU-{nvml.uuid}"


def test_the_uuid_is_empty_if_nvml_has_another_one_does_not_know_the_gpu_or_is_unavailable(nvml, monkeypatch):
    nvml.uuid = WHOLE  # NVML gives the UUID of the whole GPU, CUDA that of one part
    assert UUID_OF(as_cupy_gives_it(HOLED), PCI) == ""
    nvml.uuid = HOLED
    assert UUID_OF(as_cupy_gives_it(HOLED), "0000:00:99.0") == ""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert UUID_OF(as_cupy_gives_it(HOLED), PCI) == ""
