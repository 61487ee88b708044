"""What a user asks of a gate: thresholds by case, required cases, skips that are allowed, floors of their own.

Read from `gpubench.toml`, or from `[tool.gpubench]` of a `pyproject.toml`. Data alone: an unknown key is refused, with
the one that was meant.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpubench.base import units
from gpubench.base.errors import UsageError
from gpubench.base.files import open_to_read
from gpubench.base.patterns import matches
from gpubench.judging.evidence import Evidence
from gpubench.knowledge.floors import Floor, built_in_floors
from gpubench.model import limits

THRESHOLD_PERCENT = 2.0  # where neither policy nor option says one
_FILES = ("gpubench.toml", "pyproject.toml")
_MOST_BYTES = 2**20  # of a policy: a threshold for each of 10 000 cases fits; a parser takes a second for this


@dataclass(frozen=True, slots=True)
class Policy:
    """What is asked of a gate. Of several patterns that match a case the last counts.

    `allow_mismatch` weighs what other machines or settings measured; `noise` is a run of identical code, whose
    deviation counts where it is larger than that of the sides.
    """

    threshold_percent: float = THRESHOLD_PERCENT
    thresholds_percent: tuple[tuple[str, float], ...] = ()
    required: tuple[str, ...] = ()
    allowed_skips: tuple[str, ...] = ()
    strict: bool = False
    floors: tuple[Floor, ...] = ()
    allow_mismatch: bool = False
    noise: Evidence | None = None

    def threshold(self, case_id: str) -> float:
        """The smallest change of a case that matters, as a fraction."""
        found = [percent for pattern, percent in self.thresholds_percent if matches(case_id, (pattern,))]
        return (found or [self.threshold_percent])[-1] / 100

    def is_required(self, case_id: str) -> bool:
        """Whether a gate without a verdict on this case cannot judge; where nothing is listed, every case is."""
        return not self.required or matches(case_id, self.required)

    def allows_skip(self, cause: str, case_id: str) -> bool:
        """Return whether a case that was skipped (`cause`) may be: a gate leaves it out."""
        return cause == "skipped" and matches(case_id, self.allowed_skips)

    def floor(self, model: str, case_id: str) -> Floor | None:
        """The floor of a case on a model: the user's before the built-in ones."""
        return next((floor for floor in reversed(self.floors) if floor.is_of(model, case_id)), None)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Every pattern of cases in it, of which one that matches nothing is worth a word."""
        return (*(pattern for pattern, _ in self.thresholds_percent), *self.required, *self.allowed_skips)


def load(path: Path | None = None, folder: Path | None = None) -> Policy:
    """The policy of a file; without one, of `gpubench.toml` or else `pyproject.toml` in the folder, or the default.

    Raises UsageError, with the file, the key and what is expected there.
    """
    if path is not None:
        return _of_file(path)
    candidates = [(folder or Path.cwd()) / name for name in _FILES]
    found = next((each for each in candidates if each.is_file() and _document(each)), None)
    return _of_file(found) if found else built_in()


def built_in() -> Policy:
    """The default, with the floors that come with gpubench."""
    return Policy(floors=built_in_floors())


def _of_file(path: Path) -> Policy:
    top = _Table(str(path), "", _document(path))
    top.only("gate", "floor")
    gate = top.table("gate")
    gate.only("threshold_percent", "thresholds_percent", "required", "allowed_skips", "strict")
    each = gate.table("thresholds_percent")
    return replace(
        built_in(),
        threshold_percent=gate.percent("threshold_percent", THRESHOLD_PERCENT),
        thresholds_percent=tuple((pattern, each.percent(pattern, 0.0)) for pattern in each.values),
        required=gate.texts("required"),
        allowed_skips=gate.texts("allowed_skips"),
        strict=gate.flag("strict"),
        floors=(*built_in().floors, *_floors(top.tables("floor"))),
    )


def _document(path: Path) -> Mapping[str, Any]:
    """Return the part of the file that is ours."""
    try:
        document = tomllib.loads(_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not TOML that can be read: nested too deeply") from error
    except ValueError as error:  # also Python's own, of bytes that are no text and of numbers of too many digits
        raise UsageError(f"{path}: not TOML: {error}") from error
    if path.name != "pyproject.toml":
        return document
    return _Table(str(path), "", document).table("tool").table("gpubench").values


def _text(path: Path) -> str:
    with os.fdopen(open_to_read(path), "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: larger than {units.round_size(_MOST_BYTES)}: not a policy")
    return data.decode()


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a policy file, which says where it stands when something in it is off."""

    file: str
    name: str
    values: Mapping[str, Any]

    def refuse(self, key: str, words: str) -> UsageError:
        return UsageError(f"{self.file}: {f'{self.name}.{key}' if self.name else key}: {words}")

    def only(self, *known: str) -> None:
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
                raise self.refuse(key, f"no such key; {hint}")

    def table(self, key: str) -> _Table:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, "a table is expected")
        return _Table(self.file, f"{self.name}.{key}".strip("."), value)

    def tables(self, key: str) -> list[_Table]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.refuse(key, f"tables are expected: [[{key}]]")
        return [_Table(self.file, f"{key}[{index}]", item) for index, item in enumerate(value, 1)]

    def percent(self, key: str, default: float) -> float:
        value = self.number(key, default)
        if not 0 <= value <= 1000:
            raise self.refuse(key, f"{value:g} is no percentage from 0 to 1000")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= limits.MOST:
            raise self.refuse(key, "a number is expected" if key in self.values else "it is missing")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.refuse(key, "a text is expected" if key in self.values else "it is missing")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.refuse(key, "a list of texts is expected")
        return tuple(value)

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false is expected")
        return value


def _floors(tables: list[_Table]) -> tuple[Floor, ...]:
    return tuple(map(_floor, tables))


def _floor(table: _Table) -> Floor:
    table.only("model", "case", "expected", "unit", "tolerance_percent", "source", "better")
    better = table.text("better", "less" if table.text("unit") == "s" else "more")
    if better not in ("more", "less"):
        raise table.refuse("better", "more or less is expected")
    expected = table.number("expected")
    if expected <= 0:
        raise table.refuse("expected", "a positive number is expected")
    return Floor(
        table.text("model"),
        table.text("case"),
        expected,
        table.text("unit"),
        table.percent("tolerance_percent", 5.0),
        table.text("source"),
        "less" if better == "less" else "more",
    )
