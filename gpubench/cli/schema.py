"""`gpubench schema`: print the JSON Schema of a kind of file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gpubench.cli import _print
from gpubench.cli._late import late

with late():
    from gpubench.model import fleet, record, verdict


class Kind(StrEnum):
    """A kind of file that gpubench writes."""

    RUN = "run"
    VERDICT = "verdict"
    FLEET = "fleet"


def schema(
    kind: Annotated[Kind, typer.Argument(help="A record of a run file, the verdict of --json, or a fleet.json.")],
) -> None:
    """Print the JSON Schema of run files, verdicts or fleets; its $id names the version."""
    schemas = {Kind.RUN: record.schema, Kind.VERDICT: verdict.verdict_schema, Kind.FLEET: fleet.fleet_schema}
    _print.document(schemas[kind]())
