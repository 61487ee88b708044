"""Compare a figure with other cards of its model: a distribution with its count, a hint and never a gate.

Figures have three ranks: measured by this project (`cards-measured.json`), contributed by users as the files that
`gpubench contribute` writes (`contributed-….json`), and public ones with their address (`cards-public.toml`)."""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from gpubench.base import units
from gpubench.model import Better

SCHEMA = "gpubench.contribution/1"
Rank = Literal["measured", "contributed", "public"]
_EQUAL = 0.005  # a figure is as good as another one if it is worse by at most this fraction


@dataclass(frozen=True, slots=True)
class CardFigure:
    """The figure of a case on one card, in SI units.

    `source` is the address of a public figure, else the hash of its run file. `method` says how a public figure was
    measured, because another tool's method may give another figure. `month` is when it was measured, as `2026-11`."""

    model: str
    case: str
    value: float
    unit: str
    rank: Rank
    source: str
    method: str = ""
    month: str = ""
    version: int = 1


@cache
def card_figures() -> tuple[CardFigure, ...]:
    """Return all figures that gpubench ships; the files are read once."""
    folder = files("gpubench.knowledge")
    public = tomllib.loads((folder / "cards-public.toml").read_text(encoding="utf-8"))["card"]
    figures = [CardFigure(rank="public", **row) for row in public]
    for name in sorted(file.name for file in folder.iterdir() if file.name.endswith(".json")):
        for run in json.loads((folder / name).read_text(encoding="utf-8")):
            figures += _of_run(run, "measured" if name == "cards-measured.json" else "contributed")
    return tuple(figures)


def _of_run(run: dict[str, Any], rank: Rank) -> Iterator[CardFigure]:
    for row in run["figures"]:
        values = row["case"], row["value"], row["unit"]
        yield CardFigure(run["model"], *values, rank, run["run_sha256"], "", run["month"], row["version"])


def standing(model: str, case: str, version: int, value: float, better: Better) -> str:
    """Return how a figure compares with other cards of its model: `as good as 3 of 7 runs on NVIDIA H200 (…)`.

    The text is empty if no figure is known. Public figures stand beside, not among them: their method differs. The
    figure itself, if it is one of them, is not counted either."""
    same = [figure for figure in card_figures() if (figure.model, figure.case) == (model, case)]
    own = [figure for figure in same if figure.rank != "public" and figure.version == version]
    own = [figure for figure in own if figure.value != value]
    parts = []
    if own:
        limits = [figure.value * (1 - _EQUAL if better == "more" else 1 + _EQUAL) for figure in own]
        count = sum(value >= limit if better == "more" else value <= limit for limit in limits)
        ranks = [(rank, sum(figure.rank == rank for figure in own)) for rank in ("measured", "contributed")]
        counts = ", ".join(f"{number} {rank}" for rank, number in ranks if number)
        parts.append(f"as good as {count} of {len(own)} runs on {model} ({counts})")
    if public := sorted(
        (figure for figure in same if figure.rank == "public"), key=lambda figure: abs(figure.value - value)
    ):
        worst, best = (units.quantity(end(figure.value for figure in public), public[0].unit) for end in (min, max))
        values = f"{len(public)} from {worst} to {best}, the nearest" if len(public) > 1 else best
        parts.append(f"public: {values} by {public[0].method}, {public[0].source}")
    return "; ".join(parts)
