"""Define the rules for reading every record of a run file: strict types, no unknown fields, only finite numbers."""

from typing import Any, ClassVar

SCHEMA = "gpubench.run/1"


STRICT: dict[str, Any] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


def identified(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema with its dialect and its identity, a URN such as `urn:gpubench:run:1`."""
    urn = f"urn:{name.replace('.', ':').replace('/', ':')}"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": urn} | document


class Strict:
    """The base of each dataclass that pydantic reads by these rules."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT
