"""Write a ladder as text: the same in the terminal and on a page."""

from gpubench.base import units
from gpubench.explaining.ladder import REMEDIES, Ladder, percent_of_change

HEADS = ("rung", "change", "left", "±", "who can win it", "evidence")


def headline(ladder: Ladder) -> str:
    """Return `gemm/square[…] on cuda:0: 705.5 TFLOP/s, 71.3 % of 989.0 TFLOP/s (data sheet …)`."""
    value, top = units.quantity(ladder.value, ladder.unit), units.quantity(ladder.top, ladder.unit)
    place = f"{ladder.case} on {'+'.join(ladder.devices)}"
    return f"{place}: {value}, {units.percent(ladder.whole)} of {top} ({ladder.source})"


def rows(ladder: Ladder) -> list[tuple[str, ...]]:
    """Return the cells of each rung under HEADS, and of the part without a name at the end."""
    left, cells = 1.0, []
    for rung in ladder.shown:
        left *= rung.factor
        cells.append(
            (
                rung.title,
                percent_of_change(rung.factor),
                units.percent(left),
                units.percent(rung.deviation),
                REMEDIES[rung.remedy],
                rung.evidence,
            )
        )
    share, width = percent_of_change(ladder.unexplained), units.percent(ladder.deviation)
    note = "the rungs claim more than was lost" if ladder.unexplained > 1 + ladder.deviation else "no evidence"
    if abs(ladder.unexplained - 1) <= ladder.deviation:
        note = "within the error of the rungs"
    return [*cells, ("unexplained", share, units.percent(ladder.whole), width, "", note)]
