"""Show the serving capacity of a run's models as tables: highest rates, latencies over the rate, sessions, energy."""

from collections.abc import Iterator, Sequence

from gpubench.analysis.energy import Energy
from gpubench.analysis.serving import OBJECTIVES, Objectives, RatePoint, SimulatedPercentile
from gpubench.analysis.views.served import Latencies, Serving, SessionCheck
from gpubench.analysis.views.table import NO_VALUE, Table
from gpubench.base import units

_TIMES = tuple(f"{time} {share}" for time in ("first token", "per token", "last token") for share in ("p50", "p99"))
_KNEE_HEADS = ("model", "device", "batch", "prompt", "output", "objectives", "highest rate", "tokens", *_TIMES[:4])
_RATE_HEADS = ("model", "device", "rate", *_TIMES, "goodput server", "goodput interactive", "queue")
_SESSION_HEADS = (
    "case",
    "queries",
    "time",
    *(f"p50{suffix}" for suffix in ("", ", simulated", ", error")),
    *(f"p99{suffix}" for suffix in ("", ", simulated", ", error", ", 95 % interval of the error")),
)
_ENERGY_HEADS = ("case", "energy", "power")
_LATENCY_HEADS = ("case", "queries", "median", "p90", "p99")
_SERVING_NOTE = "LoadGen scenario Server, simulated from measured steps and prefills; not an MLPerf result"


def serving_tables(models: Sequence[Serving]) -> list[Table]:
    """Return the tables of the models of one view: highest rates within the objectives, latencies by rate, sessions.

    A measured session stands beside its simulation. Without a model the list is empty."""
    if not models:
        return []
    limits = (f"{name}: {first_s:g} s and {token_s:g} s" for name, first_s, token_s in map(_limits, OBJECTIVES))
    note = f"{_SERVING_NOTE}. Objectives on p99, first token and per token: {', '.join(limits)}; batch: the largest one"
    knees = tuple(_knee_row(model, objectives.name, point) for model in models for objectives, point in model.knees)
    tables = [Table("Highest rate within the objectives", _KNEE_HEADS, knees, ("model", "device", "objectives"), note)]
    rates = tuple(_rate_row(model, point) for model in models for point in model.points)
    tables.append(Table(models[0].title, _RATE_HEADS, rates, ("model", "device", "queue"), _SERVING_NOTE))
    sessions = tuple(_session_row(session) for model in models for session in model.sessions)
    latencies = tuple(_latency_row(latency) for measured in models for latency in measured.latencies)
    if latencies:
        title, note = "LoadGen scenarios, not MLPerf results: time of a query", "p90 from 64 queries, p99 from 662"
        tables.append(Table(title, _LATENCY_HEADS, latencies, _LATENCY_HEADS[:1], note))
    if sessions:
        title = "Simulation beside measured sessions with the same arrivals"
        note = "The error is the share by which the simulation exceeds the measured time; p99 needs 662 queries"
        tables.append(Table(title, _SESSION_HEADS, sessions, ("case", "time"), note))
    return tables


def energy_tables(energies: Sequence[tuple[str, Energy]]) -> list[Table]:
    """Return a table of the energy per token by case id; an empty list without cases."""
    rows = tuple((case, energy.figure, units.quantity(energy.watts, "W")) for case, energy in energies)
    return [Table("Energy per token", _ENERGY_HEADS, rows, _ENERGY_HEADS[:1])] if rows else []


def _latency_row(latencies: Latencies) -> tuple[str, ...]:
    """Return the cells of a case: its id, the number of its queries, and the median, p90 and p99 of their latencies."""
    times = (
        NO_VALUE if value is None else units.quantity(value, "s")
        for value in (latencies.median, latencies.p90, latencies.p99)
    )
    return (latencies.case, str(latencies.queries), *times)


def _limits(objectives: Objectives) -> tuple[str, float, float]:
    """Return the name of the objectives with their limits on the first token and on each further token, in seconds."""
    return objectives.name, objectives.first_token_s, objectives.token_s


def _knee_row(served: Serving, objectives: str, point: RatePoint | None) -> tuple[str, ...]:
    """Return the cells of the highest rate of a model within the objectives of that name."""
    sizes = map(str, (served.times.slots, served.load.prompt, served.load.output))
    start = served.label, ", ".join(served.devices), *sizes, objectives
    if point is None:
        return (*start, "none meets them", *(NO_VALUE for _ in _KNEE_HEADS[7:]))
    rates = units.quantity(point.rate, "query/s"), units.quantity(point.rate * served.load.output, "token/s")
    return (*start, *rates, *_median_and_p99(point.first_token_s, point.token_s))


def _rate_row(served: Serving, point: RatePoint) -> tuple[str, ...]:
    """Return the cells of one simulated rate of a model: its latencies, its goodput, and the state of the queue."""
    goodput = (units.quantity(rate, "query/s") for rate in point.goodput)
    return (
        served.label,
        ", ".join(served.devices),
        units.quantity(point.rate, "query/s"),
        *_median_and_p99(point.first_token_s, point.token_s, point.whole_s),
        *goodput,
        "sustained" if point.is_sustained else "not sustained",
    )


def _median_and_p99(*pairs: tuple[float, float | None]) -> Iterator[str]:
    """Yield the two values of each pair, a median and a 99th percentile in seconds, as texts; `NO_VALUE` for None."""
    return (NO_VALUE if value is None else units.quantity(value, "s") for pair in pairs for value in pair)


def _session_row(session: SessionCheck) -> tuple[str, ...]:
    """Return the cells of one time of a measured session: both percentiles, their simulation, and its error."""
    p99 = session.p99
    cells = (*_percentile_cells(session.p50), *(_percentile_cells(p99) if p99 else (NO_VALUE,) * 3))
    errors = p99.errors if p99 else None
    interval = f"{100 * errors[0]:+.1f} to {100 * errors[1]:+.1f} %" if errors else NO_VALUE
    return (session.case, str(session.queries), session.time, *cells, interval)


def _percentile_cells(percentile: SimulatedPercentile) -> tuple[str, ...]:
    """Return the cells of a percentile: measured, simulated, and the error of the simulation in per cent."""
    times = (units.quantity(seconds, "s") for seconds in (percentile.measured, percentile.simulated))
    return (*times, f"{100 * percentile.error:+.1f} %")
