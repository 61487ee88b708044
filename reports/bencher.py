"""Write the headline figures in Bencher Metric Format, for `bencher run --adapter json --file …`."""

import json
from dataclasses import dataclass

from gpubench.api import report as gb

# SI unit → slug of Bencher's measure, factor to its unit; its own measure `latency` is in nanoseconds
_MEASURES = {
    "s": ("latency", 1e9),
    "B/s": ("bytes-per-second", 1.0),
    "FLOP/s": ("flops-per-second", 1.0),
    "op/s": ("operations-per-second", 1.0),
    "item/s": ("items-per-second", 1.0),
}


@dataclass(frozen=True, slots=True)
class BencherReport:
    """Writes one JSON object: case, devices and their models → measure → value with the ends of its interval."""

    summary: str = "the headline figures in Bencher Metric Format (JSON)"

    def render(self, run: gb.Run) -> str:
        """Return the document; a figure whose unit has no measure above has the measure `value`."""
        document = {}
        summary = gb.Summary(run)
        for spread in summary.spreads():
            figure = spread.figure
            if figure is None:
                continue
            slug, factor = _MEASURES.get(figure.unit, ("value", 1.0))
            ends = {
                "value": figure.interval.centre,
                "lower_value": figure.interval.low,
                "upper_value": figure.interval.high,
            }
            values = {name: value * factor for name, value in ends.items() if gb.record(value) is not None}
            if "value" in values:
                models = dict.fromkeys(summary.device(device).name for device in spread.devices)
                document[f"{spread.case.id} on {'+'.join(spread.devices)} ({' + '.join(models)})"] = {slug: values}
        return json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


report: gb.Report = BencherReport()
