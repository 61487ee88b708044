"""Write the figures of a run in the text format of Prometheus, for the textfile collector of the node exporter.

The text is valid OpenMetrics too: all metrics are gauges, and Prometheus ignores the last line."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpubench.api import report as gb

# SI unit → its name at the end of a metric's, as Prometheus names base units
_UNITS = {
    "s": "seconds",
    "B": "bytes",
    "B/s": "bytes_per_second",
    "FLOP/s": "flops_per_second",
    "OP/s": "operations_per_second",
    "op/s": "operations_per_second",
    "item/s": "items_per_second",
    "Hz": "hertz",
    "cycles": "cycles",
    "": "ratio",
}
_OTHER = "value"  # for a unit without a name above; the label `unit` then has the unit
_COVERED = "within the process; of several replicates, over their medians"
_KINDS = {
    "median": "median of the headline series",
    "low": f"lower end of the median's 95 % interval, {_COVERED}",
    "high": f"upper end of the median's 95 % interval, {_COVERED}",
}


@dataclass(frozen=True, slots=True)
class PrometheusReport:
    """Writes gauges: the headline of each case that is ok, how each case ended, and when the run began."""

    summary: str = "gauges of the headline figures in Prometheus' text format, for a textfile collector"

    def render(self, run: gb.Run) -> str:
        """Return the metrics of a run as text: headline figures, the status of each case, and the state of the run."""
        summary = gb.Summary(run)
        spreads = summary.spreads()
        return "".join(
            f"{line}\n"
            for line in (*_figure_lines(summary, spreads), *_case_lines(spreads), *_run_lines(summary), "# EOF")
        )


def _figure_lines(summary: gb.Summary, spreads: list[gb.Spread]) -> Iterator[str]:
    families: dict[str, list[str]] = {}
    for spread in spreads:
        figure = spread.figure
        if figure is None:
            continue
        devices = dict.fromkeys(summary.device(device_id).name for device_id in spread.devices)
        labels = {**_labels(spread), "series": figure.name, "device": " + ".join(devices)}
        unit = _UNITS.get(figure.unit, _OTHER)
        labels |= {"unit": figure.unit} if unit == _OTHER else {}
        values = {"median": figure.interval.centre, "low": figure.interval.low, "high": figure.interval.high}
        for kind, value in values.items():
            if gb.record(value) is not None:
                families.setdefault(f"{unit}_{kind}", []).append(f"{_labels_text(labels)} {value!r}")
    for name, samples in families.items():
        yield from _metric_lines(f"gpubench_{name}", _KINDS[name.rpartition("_")[2]], samples)


def _case_lines(spreads: list[gb.Spread]) -> Iterator[str]:
    samples = [f"{_labels_text({**_labels(spread), 'status': spread.status})} 1" for spread in spreads]
    yield from _metric_lines("gpubench_case_status", "status of each case: ok, skipped, failed or invalid", samples)


def _run_lines(summary: gb.Summary) -> Iterator[str]:
    counts = [f"{_labels_text({'status': status})} {count}" for status, count in summary.counts().items()]
    yield from _metric_lines("gpubench_run_results", "results of the run by status", counts)
    yield from _metric_lines(
        "gpubench_run_complete",
        "1 if the run was completed, 0 if it was interrupted",
        [f" {int(summary.run.complete)}"],
    )
    try:
        started = gb.units.unix_seconds(summary.run.manifest.started)
    except ValueError:
        return  # results that another tool measured have no start
    yield from _metric_lines(
        "gpubench_run_started_seconds", "start of the run, Unix time in seconds", [f" {started!r}"]
    )


def _labels(spread: gb.Spread) -> dict[str, str]:
    return {"case": spread.case.id, "suite": spread.case.suite, "devices": "+".join(spread.devices)}


def _metric_lines(name: str, meaning: str, samples: list[str]) -> Iterator[str]:
    """Yield the HELP and TYPE lines of a metric and its samples; nothing without samples."""
    if samples:
        yield f"# HELP {name} {meaning}"
        yield f"# TYPE {name} gauge"
        yield from (f"{name}{sample}" for sample in samples)


def _labels_text(labels: dict[str, str]) -> str:
    """Return labels as text, escaped and in braces: `{case="gemm/square"}`."""
    escaped = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(escaped) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


report: gb.Report = PrometheusReport()
