"""The charts of a timeline as numbers in the units of their axes, for the script that zooms them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api.report import Result, result_lanes, units

from ._bands import Band

Numbers = npt.NDArray[np.float64]
_GIB = 2.0**30


def line_chart(
    device: str, unit: str, at: Numbers, values: Numbers, back: Sequence[Band], begin: float
) -> dict[str, Any]:
    """Return a line: times to a millisecond, values to five digits, and the bands in which the device was slow."""
    factor, shown = _scale(float(np.abs(values).max()), unit)
    return {
        "kind": "line",
        "device": device,
        "unit": shown,
        "at": np.round(at, 3).tolist(),
        "values": [float(f"{value:.5g}") for value in (values / factor).tolist()],
        "bands": [_band(band, begin) for band in back],
    }


def event_chart(device: str, found: Sequence[Band], begin: float) -> dict[str, Any]:
    """A lane for each event."""
    return {"kind": "lanes", "device": device, "bands": [_band(band, begin) for band in found]}


def case_chart(results: Sequence[Result], begin: float) -> dict[str, Any]:
    """A lane for each suite, filled while one of its cases ran; of a profiled program a lane for each phase."""
    bands = [
        [name, "", [round(at - begin, 3) for _, *span in spans for at in span]]
        for name, spans in result_lanes(results).items()
    ]
    return {"kind": "lanes", "device": "", "bands": bands}


def _band(band: Band, begin: float) -> list[Any]:
    return [band.name, band.kind, [round(at - begin, 3) for span in band.spans for at in span]]


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return the factor and the unit of an axis, as `units.scale`; bytes are in GiB or MiB."""
    if unit == "B":
        factor, words = (_GIB, "GiB") if value >= _GIB else (2.0**20, "MiB")
        return factor, words
    return units.scale(value, unit)
