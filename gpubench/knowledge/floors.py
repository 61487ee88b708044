"""Look up the figure that a case should reach on a model of GPU in `floors.toml`, which gives a source for each."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpubench.base.patterns import is_named
from gpubench.model import Better


@dataclass(frozen=True, slots=True)
class Floor:
    """The figure that a case should reach on a model of GPU, and its tolerance in per cent.

    The names of the model and of the case may have the wildcards * and ?."""

    model: str
    case: str
    expected: float  # SI units
    unit: str
    tolerance_percent: float
    source: str
    better: Better = "more"
    date: str = ""  # the day on which this project measured it, empty for a figure of others

    def is_of(self, model: str, case_id: str) -> bool:
        """Return whether this is the floor of the case on a model of GPU, by its patterns."""
        return is_named(model, self.model) and is_named(case_id, self.case)


@cache
def built_in_floors() -> tuple[Floor, ...]:
    """Return the floors that come with gpubench, in the order of `floors.toml`; the file is read once.

    A floor without a tolerance in the file has 5 %; less is better for a floor in seconds, more for any other."""
    text = (files("gpubench.knowledge") / "floors.toml").read_text(encoding="utf-8")
    return tuple(
        Floor(**{"tolerance_percent": 5.0, "better": "less" if row["unit"] == "s" else "more", **row})
        for row in tomllib.loads(text)["floor"]
    )


def built_in_floor(model: str, case_id: str) -> Floor | None:
    """Return the floor of a case on a model of GPU, the last matching one in the file; None if there is none."""
    return next((floor for floor in reversed(built_in_floors()) if floor.is_of(model, case_id)), None)
