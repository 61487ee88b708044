"""What every record of a run file obeys: its schema, and strict reading with finite numbers alone."""

from __future__ import annotations

from typing import Any

SCHEMA = "gpubench.run/1"


STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
