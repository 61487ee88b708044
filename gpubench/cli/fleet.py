"""`gpubench fleet`: measure many machines at the same time, and find the GPU, the node or the link that is slow."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Measure many machines at the same time, and find the GPU, the node or the link that is slow.",
)
