"""Draw bars and small charts with block characters, or with ASCII characters if a terminal has no others."""

from collections.abc import Sequence

_HEIGHTS = "▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = ".:-=+*%@"
_WIDTHS = " ▏▎▍▌▋▊▉"
_FULL, _ASCII_FULL, _REST, _ASCII_REST = "█", "#", "░", "."


def bar(fraction: float, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar of `width` characters, filled from the left up to `fraction`, which is clipped to 0 … 1.

    `ascii_only` draws it with # and . in place of blocks."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    whole, part = divmod(eighths, 8)
    if ascii_only:
        return (_ASCII_FULL * whole).ljust(width, _ASCII_REST)
    edge = _WIDTHS[part] if part else ""
    return (_FULL * whole + edge).ljust(width, _REST)


def chart(fractions: Sequence[float | None], *, ascii_only: bool = False) -> str:
    """Return one character per fraction, taller for a larger one, and a blank for None.

    Fractions are clipped to 0 … 1. `ascii_only` uses ASCII characters in place of blocks."""
    heights = _ASCII_HEIGHTS if ascii_only else _HEIGHTS
    return "".join(
        " " if fraction is None else heights[min(int(max(fraction, 0.0) * len(heights)), len(heights) - 1)]
        for fraction in fractions
    )
