"""Define the rules for reading every record of a run file: strict types, no unknown fields, only finite numbers."""

from typing import Any

SCHEMA = "gpubench.run/1"


STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
