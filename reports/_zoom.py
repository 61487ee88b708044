"""Turn the charts of a timeline into numbers, in the units of their axes, for the script that zooms them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpubench.api import report as gb

from ._bands import Band

Numbers = npt.NDArray[np.float64]
_GIB = 2.0**30


def line_chart(
    device: str, unit: str, at: Numbers, values: Numbers, slowdowns: Sequence[Band], begin: float
) -> dict[str, Any]:
    """Return a line for the script as a dict: `kind`, `device`, `unit`, `at` (s), `values` and `bands` (the slowdowns).

    `begin` is the time in seconds of the run at which the axis starts."""
    factor, axis_unit = _scale(float(np.abs(values).max()), unit)
    return {
        "kind": "line",
        "device": device,
        "unit": axis_unit,
        "at": np.round(at, 3).tolist(),
        "values": [float(f"{value:.5g}") for value in (values / factor).tolist()],
        "bands": [_band(band, begin) for band in slowdowns],
    }


def event_chart(device: str, event_bands: Sequence[Band], begin: float) -> dict[str, Any]:
    """Return a lane for each event, for the script, as a dict: `kind`, `device` and `bands`.

    `begin` is the time in seconds of the run at which the axis starts."""
    return {"kind": "lanes", "device": device, "bands": [_band(band, begin) for band in event_bands]}


def case_chart(results: Sequence[gb.Result], begin: float) -> dict[str, Any]:
    """Return a lane for each suite, or each phase of a profiled program, for the script, as a dict.

    Its keys are `kind`, `device` (empty) and `bands`, which have the times of the cases."""
    bands = [
        [name, "", [round(at - begin, 3) for _, *span in spans for at in span]]
        for name, spans in gb.result_lanes(results).items()
    ]
    return {"kind": "lanes", "device": "", "bands": bands}


def _band(band: Band, begin: float) -> list[Any]:
    """Return a band as its name, its kind, and a list of the starts and ends of its spans in seconds since `begin`."""
    return [band.name, band.kind, [round(at - begin, 3) for span in band.spans for at in span]]


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return the factor and the prefixed unit in which to show values up to `value`; bytes are in GiB or MiB."""
    if unit == "B":
        factor, name = (_GIB, "GiB") if value >= _GIB else (2.0**20, "MiB")
        return factor, name
    return gb.units.scale(value, unit)
