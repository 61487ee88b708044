"""Write the rates for github-action-benchmark, whose tool `customBiggerIsBetter` takes them."""

import json
from dataclasses import dataclass

from gpubench.api import report as gb


@dataclass(frozen=True, slots=True)
class ActionReport:
    """Writes a JSON list of the headline figures of one direction, because the action takes one direction a file."""

    summary: str
    better: str

    def render(self, run: gb.Run) -> str:
        """Return the entries, each with the half-width of its interval as `range`."""
        entries = []
        summary = gb.Summary(run)
        for spread in summary.spreads():
            figure = spread.figure
            if figure is None or figure.better != self.better or gb.record(figure.interval.centre) is None:
                continue
            name = f"{spread.case.id} on {'+'.join(spread.devices)}"
            entry = {"name": name, "unit": figure.unit or "ratio", "value": figure.interval.centre}
            devices = dict.fromkeys(summary.device(device).name for device in spread.devices)
            half = gb.record((figure.interval.high - figure.interval.low) / 2)
            entries.append(
                {**entry, "extra": " + ".join(devices), **({} if half is None else {"range": f"± {half:.4g}"})}
            )
        return json.dumps(entries, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


report: gb.Report = ActionReport("the rates for github-action-benchmark (customBiggerIsBetter)", "more")
