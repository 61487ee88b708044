"""Read the policy of a gate: thresholds by case, required cases, allowed skips, and the user's own floors.

It stands in `gpubench.toml`, or in `[tool.gpubench]` of a `pyproject.toml`. A policy is only data: an unknown key is an
error, whose message names the most similar key."""

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

THRESHOLD_PERCENT = 2.0  # the default if neither the policy nor an option gives a threshold
_FILES = ("gpubench.toml", "pyproject.toml")
_MOST_BYTES = 2**20  # a policy with thresholds for 10 000 cases fits; a parser takes a second for it


@dataclass(frozen=True, slots=True)
class Policy:
    """The user's demands on a gate. If several patterns match a case, the last one counts.

    `thresholds_percent` has a pattern of case ids and a threshold in per cent each; `threshold_percent` is the
    threshold of the other cases. `required` and `allowed_skips` are patterns of case ids. With `strict`, a gate cannot
    judge if a required case is inconclusive or any is missing. `floors` are the expected figures of GPU models.

    `references` are patterns of cases that no change of the user's code can reach; if they become slower together, the
    machine did. `allow_missing` and `allow_undecided` let a gate pass without cases that vanished, and with suites of
    which nothing is decided. With `allow_mismatch`, runs of other machines or settings are compared. `noise` is a run
    of identical code, whose deviation counts if it is larger than the deviation of the two sides."""

    threshold_percent: float = THRESHOLD_PERCENT
    thresholds_percent: tuple[tuple[str, float], ...] = ()
    required: tuple[str, ...] = ()
    allowed_skips: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    strict: bool = False
    allow_missing: bool = False
    allow_undecided: bool = False
    floors: tuple[Floor, ...] = ()
    allow_mismatch: bool = False
    noise: Evidence | None = None

    def threshold(self, case_id: str) -> float:
        """Return the smallest relevant change of a case as a fraction."""
        percentages = [percent for pattern, percent in self.thresholds_percent if matches(case_id, (pattern,))]
        return (percentages or [self.threshold_percent])[-1] / 100

    def is_required(self, case_id: str) -> bool:
        """Return whether a gate needs a verdict on this case; if no case is listed as required, every case is."""
        return not self.required or matches(case_id, self.required)

    def is_reference(self, case_id: str) -> bool:
        """Return whether no change of the user's code can reach this case."""
        return matches(case_id, self.references)

    def allows_skip(self, cause: str, case_id: str) -> bool:
        """Return whether `cause` is `skipped` and the policy allows that for the case, so that a gate leaves it out."""
        return cause == "skipped" and matches(case_id, self.allowed_skips)

    def floor(self, model: str, case_id: str) -> Floor | None:
        """Return the floor of a case on a GPU model, or None if there is none.

        The user's floors take precedence over the built-in ones, and later ones over earlier ones."""
        return next((floor for floor in reversed(self.floors) if floor.is_of(model, case_id)), None)

    @property
    def patterns(self) -> tuple[str, ...]:
        """All patterns of cases in the policy; the user is warned about patterns that match no case."""
        return (
            *(pattern for pattern, _ in self.thresholds_percent),
            *self.required,
            *self.references,
            *self.allowed_skips,
        )


def load(path: Path | None = None, folder: Path | None = None) -> Policy:
    """Return the policy in the file `path`, without a path the policy of a folder, and without a file the built-in one.

    Of `pyproject.toml`, only the table `tool.gpubench` counts."""
    if path is not None:
        return _of_file(path)
    candidates = [(folder or Path.cwd()) / name for name in _FILES]
    chosen = next((path for path in candidates if path.is_file() and _document(path)), None)
    return _of_file(chosen) if chosen else built_in()


def built_in() -> Policy:
    """Return the default policy with the floors that come with gpubench."""
    return Policy(floors=built_in_floors())


def _of_file(path: Path) -> Policy:
    """Return the policy of a file. Raises UsageError if it cannot be read or is not a valid policy."""
    top = _PolicyTable(str(path), "", _document(path))
    top.only("gate", "floor")
    gate = top.table("gate")
    flags = ("strict", "allow_missing", "allow_undecided")
    gate.only("threshold_percent", "thresholds_percent", "required", "reference", "allowed_skips", *flags)
    thresholds = gate.table("thresholds_percent")
    return replace(
        built_in(),
        threshold_percent=gate.percent("threshold_percent", THRESHOLD_PERCENT),
        thresholds_percent=tuple((pattern, thresholds.percent(pattern, 0.0)) for pattern in thresholds.values),
        required=gate.texts("required"),
        references=gate.texts("reference"),
        allowed_skips=gate.texts("allowed_skips"),
        strict=gate.flag("strict"),
        allow_missing=gate.flag("allow_missing"),
        allow_undecided=gate.flag("allow_undecided"),
        floors=(*built_in().floors, *map(_floor, top.tables("floor"))),
    )


def _document(path: Path) -> Mapping[str, Any]:
    """Return the part of a policy file for gpubench: the table `tool.gpubench` of `pyproject.toml`, else the whole."""
    try:
        document = tomllib.loads(_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not TOML that can be read: nested too deeply") from error
    except ValueError as error:  # includes Python's errors about undecodable bytes and numbers with too many digits
        raise UsageError(f"{path}: not TOML: {error}") from error
    if path.name != "pyproject.toml":
        return document
    return _PolicyTable(str(path), "", document).table("tool").table("gpubench").values


def _text(path: Path) -> str:
    with os.fdopen(open_to_read(path), "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: larger than {units.round_size(_MOST_BYTES)}: not a policy")
    return data.decode()


@dataclass(frozen=True, slots=True)
class _PolicyTable:
    """A table of a policy file: the path of the file, the name of the table in it (empty for the top), and the values.

    Its methods return checked values and raise UsageError with the place of a wrong one."""

    file: str
    name: str
    values: Mapping[str, Any]

    def refuse(self, key: str, problem: str) -> UsageError:
        """Return a UsageError that names the file and the key, for the caller to raise."""
        return UsageError(f"{self.file}: {f'{self.name}.{key}' if self.name else key}: {problem}")

    def only(self, *allowed: str) -> None:
        """Raise UsageError, with the most similar allowed key, if the table has a key that is not among `allowed`."""
        for key in self.values:
            if key not in allowed:
                near = difflib.get_close_matches(key, allowed, n=1)
                hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(allowed)}"
                raise self.refuse(key, f"no such key; {hint}")

    def table(self, key: str) -> _PolicyTable:
        """Return the table under a key, empty if it is missing. Raises UsageError if it is not a table."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, "a table is expected")
        return _PolicyTable(self.file, f"{self.name}.{key}".strip("."), value)

    def tables(self, key: str) -> list[_PolicyTable]:
        """Return the tables in the list under a key, empty if it is missing."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.refuse(key, f"tables are expected: [[{key}]]")
        return [_PolicyTable(self.file, f"{key}[{index}]", item) for index, item in enumerate(value, 1)]

    def percent(self, key: str, default: float) -> float:
        """Return the percentage under a key, `default` if it is missing."""
        value = self.number(key, default)
        if not 0 <= value <= 1000:
            raise self.refuse(key, f"{value:g} is no percentage from 0 to 1000")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return the number under a key. Raises UsageError if it is not a number, or missing without a default."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= limits.MOST:
            raise self.refuse(key, "a number is expected" if key in self.values else "it is missing")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return the text under a key. Raises UsageError if it is no text or empty, or missing without a default."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.refuse(key, "a text is expected" if key in self.values else "it is missing")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the texts under a key, empty if it is missing. Raises UsageError if it is no list of texts."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.refuse(key, "a list of texts is expected")
        return tuple(value)

    def flag(self, key: str) -> bool:
        """Return the flag under a key, False if it is missing. Raises UsageError if it is neither true nor false."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false is expected")
        return value


def _floor(table: _PolicyTable) -> Floor:
    """Return the floor of a table. Raises UsageError if a key is unknown, missing or has a wrong value."""
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
