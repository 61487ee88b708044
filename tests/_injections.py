"""Texts that are code in some form, and a run or a comparison with one of them in every field that holds a text."""

import dataclasses
import json
from enum import Enum
from pathlib import Path

INJECTIONS: tuple[str, ...] = tuple(json.loads((Path(__file__).parent / "data" / "injections.json").read_text("utf-8")))
# Texts that are code only at the start of a line or of a cell. The others are code anywhere.
_STARTS = ("=", "+", "-", "@", "::", " \u00a0", "\t", "\u034f", "/", "1.", ">", "a|b")
TOGETHER = (
    *(text for text in INJECTIONS if text.startswith(_STARTS)),
    " ".join(text for text in INJECTIONS if not text.startswith((*_STARTS, "\x1b", "\u202e"))),
    " ".join(text for text in INJECTIONS if text.startswith(("\u202e", "\x1b"))),
)
FIXED = {  # texts with a fixed set of values: status, direction, quantity, kind of view or counter, tier
    *("ok", "skipped", "failed", "invalid", "more", "less", "value", "moved", "payload", "flops", "item", "items", ""),
    *("bars", "curve", "matrix", "pareto", "staircase", "transfer", "smoke", "quick", "full"),
    *("gauge", "cumulative", "window", "event", "gpubench.run/1"),
}


def poisoned(value, text):
    """Return the same value with every free text in it replaced; the texts that the model fixes stay."""
    if isinstance(value, str):
        return value if value in FIXED or isinstance(value, Enum) else text
    if isinstance(value, tuple):
        return tuple(poisoned(item, text) for item in value)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: poisoned(getattr(value, name), text) for name in fields})
    return value
