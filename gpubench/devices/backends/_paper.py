"""Describe cards that are not here, as CUDA's or HIP's runtime would, for `doctor --card` and the tests of plans."""

import tomllib
from importlib.resources import files
from typing import Any

from gpubench.base.errors import UsageError
from gpubench.model import Device, Facts

from . import _gpu_facts

_TABLE = tomllib.loads((files("gpubench.knowledge") / "cards.toml").read_text(encoding="utf-8"))
CARDS: dict[str, dict[str, Any]] = _TABLE["card"]
ARCHS: dict[str, dict[str, Any]] = _TABLE["arch"]
_KIB, _MIB, _GIB = 2**10, 2**20, 2**30
_ATTRIBUTES = {
    13: "clockRate",
    18: "integrated",
    36: "memoryClockRate",
    37: "memoryBusWidth",
    39: "maxThreadsPerMultiProcessor",
    100: "pageableMemoryAccessUsesHostPageTables",
}


class PaperRuntime:
    """The answers of CUDA's or HIP's runtime on a machine with two cards of one model, a key of CARDS."""

    def __init__(self, card: str) -> None:
        self.card = {**ARCHS[CARDS[card]["arch"]], **CARDS[card]}
        self.is_hip = self.card["arch"].startswith("gfx")

    def getDeviceProperties(self, index: int) -> dict[str, Any]:  # noqa: ARG002, N802
        card, number = self.card, self.card["arch"].removeprefix("sm_")
        shared = card["shared_kib"] * _KIB
        props = {
            "name": card["name"].encode(),
            "totalGlobalMem": int(card["memory_gib"] * _GIB),
            "l2CacheSize": int(card["l2_mib"] * _MIB),
            "multiProcessorCount": card["units"],
            "warpSize": 64 if self.is_hip else 32,
            "sharedMemPerBlock": shared if self.is_hip else 48 * _KIB,
            "clockRate": card["mhz"] * 1000,
            "memoryClockRate": card["memory_mhz"] * 1000,
            "memoryBusWidth": card["bus"],
            "maxThreadsPerMultiProcessor": card["threads_unit"],
            "integrated": int(card.get("integrated", False)),
            "pageableMemoryAccessUsesHostPageTables": int(card.get("host_page_tables", False)),
        }
        if self.is_hip:
            return {**props, "gcnArchName": f"{card['arch']}:sramecc+:xnack-".encode()}
        return {**props, "major": int(number[:-1]), "minor": int(number[-1]), "sharedMemPerBlockOptin": shared}

    def deviceGetAttribute(self, code: int, index: int) -> Any:  # noqa: N802
        return self.card["shared_unit_kib"] * _KIB if code == 81 else self.getDeviceProperties(index)[_ATTRIBUTES[code]]

    def getDevice(self) -> int:  # noqa: N802
        return 0

    def deviceGetPCIBusId(self, index: int) -> str:  # noqa: N802
        return f"0000:0{index}:00.0"

    def deviceCanAccessPeer(self, index: int, peer: int) -> bool:  # noqa: ARG002, N802
        has_peers = not self.card.get("integrated") and "MIG" not in self.card["name"]
        return bool(self.card.get("peers", has_peers))


def facts_of(card: str) -> Facts:
    """Return the inventory of a machine with two cards of this model and its host. Raises UsageError if unknown."""
    if card not in CARDS:
        similar = [name for name in sorted(CARDS) if card.lower().replace(" ", "-") in name]
        hint = f"did you mean {' or '.join(similar)}?" if similar else f"choose from {', '.join(sorted(CARDS))}"
        raise UsageError(f"there is no card {card!r}; {hint}")
    runtime = PaperRuntime(card)
    host = Device(
        "host", "host", "CPU", "x86_64", memory_bytes=2**37, cache_bytes=2**25, units=16, dtypes=("float64", "float32")
    )
    return Facts((*(_gpu_facts.device_facts(runtime, index, 2) for index in range(2)), host))
