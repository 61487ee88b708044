"""`gpubench schema`: print the JSON Schema of a kind of file."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench.model import fleet, record, verdict


def schema(
    kind: Annotated[
        Literal["run", "verdict", "fleet"],
        typer.Argument(help="A record of a run file, the verdict of --json, or a fleet.json."),
    ],
) -> None:
    """Print the JSON Schema of run files, verdicts or fleets; its $id names the version."""
    schemas = {"run": record.schema, "verdict": verdict.verdict_schema, "fleet": fleet.fleet_schema}
    _print.document(schemas[kind]())
