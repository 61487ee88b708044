"""Write the notes that tell two figures of the same link apart.

gpubench shows these notes side by side if figures of one link differ (gpubench/analysis/views/links.py)."""

from ._copies import READING, WRITING, reads

LIMIT = "link.peer"  # the id of the peak of a link between two devices; figures of the link are compared with it
COPY_ENGINE = "copy engine"
KERNEL = "kernel on all compute units, loads and stores"
BULK = "bulk copies (TMA) on all SMs"
STAGED = "copy engines of both GPUs, through host memory"
LIBRARY = "kernels of the library, on some compute units"
ONE_WAY = "one way"
BOTH_WAYS = "both directions at once; requests and acknowledgements share the link with data"
PAYLOAD = "payload, each byte once"
READS, WRITES = "reads the memory of the other device", "writes the memory of the other device"
STEADY = "steady"
FIRST = "first use of a fresh mapping, by the host's clock"
_ENGINES = {READING["kernel"]: KERNEL, WRITING["kernel"]: KERNEL, READING["bulk"]: BULK, WRITING["bulk"]: BULK}


def link(
    direction: str, engine: str, way: str, *, counts: str = PAYLOAD, protocol: str = "none", state: str = STEADY
) -> dict[str, str]:
    """Return the notes of a case whose figure is the rate of a link, each under its parameter's name after `link.`.

    The values are this module's constants: `engine` moves the data, and `counts` says which bytes count."""
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
    """Return the notes of a copy in the way `way`, a value of READING or WRITING of _copies.py, as `link` does.

    A value of READING gives READS, any other text WRITES; a text that neither has names a copy engine."""
    engine = _ENGINES.get(way, COPY_ENGINE)
    return link(direction, engine, READS if reads(way) else WRITES, protocol=protocol, state=state)
