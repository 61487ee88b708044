"""Notes that tell two figures of one link apart.

gpubench shows these notes side by side if figures of one link differ (gpubench/analysis/views/links.py).
"""

from __future__ import annotations

from ._copies import READING, WRITING, reads

LIMIT = "link.peer"  # the peak of a link between two devices, with which its figures are compared
COPY_ENGINE = "copy engine"
KERNEL = "kernel, loads and stores by all multiprocessors"
BULK = "bulk copies (TMA) by all SMs"
STAGED = "copy engines of both GPUs, over the host link and its memory"
LIBRARY = "kernels of the library, on some multiprocessors"
ONE_WAY = "one way"
BOTH_WAYS = "both ways at once: a direction's requests and acknowledgements share the link with the other's data"
PAYLOAD = "bytes delivered, once"
READS, WRITES = "reads the other's memory", "writes the other's memory"
STEADY = "steady"
FIRST = "first touch of a fresh mapping, by the host's clock"
_ENGINES = {READING["kernel"]: KERNEL, WRITING["kernel"]: KERNEL, READING["bulk"]: BULK, WRITING["bulk"]: BULK}


def link(
    direction: str, engine: str, way: str, *, counts: str = PAYLOAD, protocol: str = "none", state: str = STEADY
) -> dict[str, str]:
    """Return the notes of a case whose figure is the rate of a link."""
    tags = {
        "direction": direction,
        "engine": engine,
        "way": way,
        "counts": counts,
        "protocol": protocol,
        "state": state,
    }
    return {f"link.{name}": tag for name, tag in tags.items()}


def link_of(direction: str, way: str, *, protocol: str = "none", state: str = STEADY) -> dict[str, str]:
    """Return the notes of a copy by one of the ways of _copies.py."""
    engine = _ENGINES.get(way, COPY_ENGINE)
    return link(direction, engine, READS if reads(way) else WRITES, protocol=protocol, state=state)
