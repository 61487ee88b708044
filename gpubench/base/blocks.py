"""Draw small charts with block characters, or with ASCII characters if a terminal has no others."""

from collections.abc import Sequence

_HEIGHTS = "▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = ".:-=+*%@"


def chart(fractions: Sequence[float | None], *, ascii_only: bool = False) -> str:
    """Return one character per fraction, taller for a larger one, and a blank for None.

    Fractions are clipped to 0 … 1. `ascii_only` uses ASCII characters in place of blocks."""
    heights = _ASCII_HEIGHTS if ascii_only else _HEIGHTS
    return "".join(
        " " if fraction is None else heights[min(int(max(fraction, 0.0) * len(heights)), len(heights) - 1)]
        for fraction in fractions
    )
