"""A card that an NVIDIA driver would report; the host computes for it, and tests/_fake_nvml.c gives its health."""

from __future__ import annotations

import os

from gpubench import plugins
from gpubench.model import Device

PROTOTYPE = Device(
    "card:0",
    "card",
    "NVIDIA pretended",
    "sm_90",
    uuid="GPU-0f0e0d0c-0b0a-0908-0706-050403020100",
    pci="0000:3b:00.0",
    memory_bytes=2**30,
    cache_bytes=2**20,
    units=1,
    dtypes=("float32", "float64"),
)


class Card:
    """The backend of the card."""

    listed = bool(os.environ.get("FAKE_NVML"))

    def devices(self):
        return (PROTOTYPE,)

    def versions(self):
        return {}

    def open(self, device):
        return plugins.load("backends", "host").open(device)


backend = Card()
