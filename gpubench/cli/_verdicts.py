"""Publish a gate's answer in the terminal, in the requested files, and for GitHub's runner."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gpubench.base import streams
from gpubench.base.clean import tidy
from gpubench.cli import _findings, _print
from gpubench.cli import _sharing as sharing
from gpubench.cli._late import late

with late():
    from gpubench import plugins
    from gpubench.base import files
    from gpubench.judging import answer
    from gpubench.judging import policy as policies
    from gpubench.tools.gating import gate

_COMMENT_BYTES = 65_536  # the limit of a comment on GitHub in characters, which are never more than bytes
_SUMMARY_BYTES = 1_024_000  # the limit of a step's summary on GitHub

Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        min=0.0,
        max=1000.0,
        help="The smallest change that matters, in per cent, for cases without a threshold in the policy. "
        "\\[default: 2]",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="The policy file. \\[default: gpubench.toml here, or else \\[tool.gpubench] of pyproject.toml]",
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit with status 4 if a case is inconclusive or missing in the candidate."),
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Pass although cases vanished that the candidate's selection names.")
]
AllowUndecided = Annotated[
    bool,
    typer.Option(
        "--allow-undecided", help="Pass although a suite has no decided case, or the candidate is a partial run."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        min=0,
        max=100,
        help="How many times to measure suspects again, each time in the same number of new processes. \\[default: 3]",
    ),
]
All = Annotated[bool, typer.Option("--all", help="List every case, including those that pass.")]
Wide = Annotated[
    bool,
    typer.Option("--wide", help="Add columns: the number of processes on both sides, and q, the false discovery rate."),
]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", help="Write Markdown to this file, short enough for a comment on a pull request."),
]


def policy(
    file: Path | None,
    threshold: float | None,
    strict: bool,
    allow_mismatch: bool,
    allow_missing: bool,
    allow_undecided: bool,
) -> policies.Policy:
    """Return the policy in `file`, else in the current folder or the built-in one, changed by the options."""
    loaded = policies.load(file)
    percent = loaded.threshold_percent if threshold is None else threshold
    return replace(
        loaded,
        threshold_percent=percent,
        strict=strict or loaded.strict,
        allow_mismatch=allow_mismatch,
        allow_missing=allow_missing or loaded.allow_missing,
        allow_undecided=allow_undecided or loaded.allow_undecided,
    )


def publish(
    judged: gate.GateResult,
    status: int,
    title: str,
    json: bool,
    junit: Path | None,
    markdown: Path | None,
    no_redact: bool = False,
    every: bool = False,
    wide: bool = False,
) -> None:
    """Write the requested files, then print the answer, or with `json` the JSON document, with warnings on stderr.

    Publications receive texts without control characters and, unless `no_redact` is set, only allowed words."""
    step_summary, is_ci = os.environ.get("GITHUB_STEP_SUMMARY"), sharing.is_ci()
    printed = shared = tidy(judged.judgement)
    if is_ci or json or junit or markdown or step_summary:
        shared = sharing.shareable(printed, no_redact, judged.manifests)
        printed = shared if is_ci else printed

    def render(form: str, limit: int = 0) -> str:
        """Return the document in the form of the publication `form`, in at most `limit` bytes if `limit` is not 0."""
        text: str = plugins.load("publications", form).render(shared, answer.answer(shared, status, title), limit)
        return text

    for path, form, limit in ((junit, "junit", 0), (markdown, "markdown", _COMMENT_BYTES)):
        if path is not None:
            sharing.write(path, render(form, limit))
    if step_summary:
        _append(Path(step_summary), lambda size: render("markdown", max(_SUMMARY_BYTES - size, 1)))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        streams.write_commands(render("annotations"), sys.stderr if json else sys.stdout)
    if json:
        for line in answer.warnings(printed):
            _print.warn(f"warning: {line}")
        sys.stdout.write(render("json"))
    else:
        _findings.show(_findings.answer_parts(printed, answer.answer(printed, status, title), every, wide))


def _append(path: Path, text: Callable[[int], str]) -> None:
    """Append the text for a file of that many bytes to the file `path`, or print a warning if that fails."""
    try:
        size = path.stat().st_size if path.exists() else 0
        files.append(path, text(size).encode())
    except OSError as error:
        _print.warn(f"cannot write {path}: {error.strerror}")
