"""What a gate says: a table in the terminal, the files that were asked for, and what GitHub's runner picks up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli import _print
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.judging.judge import Finding, Judgement
    from gpubench.judging.policy import Policy
    from gpubench.tools.gating.gate import Judged

_STYLES = {
    "slower": "bold red",
    "invalid": "yellow",
    "not comparable": "yellow",
    "inconclusive": "yellow",
    "faster": "cyan",
    "same": "green",
}
_QUIET = ("same", "faster")
_MOST_ROWS = 60  # more are counted: --json has them all
_COMMENT_BYTES = 65_536  # GitHub takes a comment of so many characters; bytes are never fewer
_SUMMARY_BYTES = 1_024_000  # GitHub takes 1024 kB of a step's summary

Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        min=0.0,
        max=1000.0,
        help="The smallest change that matters, in per cent, where the policy says nothing of a case. \\[default: 2]",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy", help="The policy. \\[default: gpubench.toml here, or else \\[tool.gpubench] of pyproject.toml]"
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="End with 4 if a case is inconclusive or has vanished from the candidate."),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        min=0,
        max=100,
        help="How often what looks slower is measured again, each time with as many processes more. \\[default: 3]",
    ),
]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here.")]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", help="Write Markdown here, short enough for a pull request's comment.")
]


def policy(file: Path | None, threshold: float | None, strict: bool, allow_mismatch: bool) -> Policy:
    """The policy of the file, with what the command's own options say."""
    from dataclasses import replace

    from gpubench.judging.policy import load

    found = load(file)
    percent = found.threshold_percent if threshold is None else threshold
    return replace(found, threshold_percent=percent, strict=strict or found.strict, allow_mismatch=allow_mismatch)


def publish(
    judged: Judged,
    status: int,
    title: str,
    json: bool,
    junit: Path | None,
    markdown: Path | None,
    no_redact: bool = False,
) -> None:
    """Write the files that were asked for, the warnings to stderr, and the table or the JSON document to stdout.

    Every text is clean in what a publication is given, so that none of them has to think of control characters, and
    without the names of people and machines, unless `no_redact` is set. A terminal shows the names; the log of a CI,
    which others read, does not. The files come first, so that a closed pipe keeps none of them back.
    """
    from gpubench import plugins
    from gpubench.base.clean import tidy
    from gpubench.base.streams import write_commands
    from gpubench.judging.judge import warnings

    step_summary, is_ci = os.environ.get("GITHUB_STEP_SUMMARY"), _is_ci()
    shown = shared = tidy(judged.judgement)
    if is_ci or json or junit or markdown or step_summary:
        shared = sharing.shareable_value(shown, judged.manifests, no_redact)
        shown = shared if is_ci else shown

    def render(form: str, limit: int = 0) -> str:
        text: str = plugins.load("publications", form).render(shared, title, limit)
        return text

    for path, form, limit in ((junit, "junit", 0), (markdown, "markdown", _COMMENT_BYTES)):
        if path is not None:
            _write(path, render(form, limit))
    if step_summary:
        _append(Path(step_summary), render("markdown", max(_SUMMARY_BYTES - _size(Path(step_summary)), 1)))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        write_commands(render("annotations"), sys.stderr if json else sys.stdout)
    for line in warnings(shown):
        _print.err().print(_print.plain(f"warning: {line}", "yellow"), soft_wrap=True)
    if json:
        sys.stdout.write(render("json"))
    else:
        _print.out().print(*table(shown, status), sep="\n")


def _is_ci() -> bool:
    """Whether a CI runs this, whose logs others read: GitHub, GitLab and most others set CI."""
    return "true" in (os.environ.get("CI"), os.environ.get("GITHUB_ACTIONS"))


def table(judgement: Judgement, status: int) -> list[object]:
    """The findings, the worst first, and how the gate ended; of many findings those that are the same are counted."""
    from gpubench.judging.judge import decided
    from gpubench.model import Verdict

    shown = list(judgement.findings)
    if len(shown) > _MOST_ROWS:
        shown = [finding for finding in shown if finding.verdict is not Verdict.SAME][:_MOST_ROWS]
    devices = {finding.devices for finding in judgement.findings if finding.devices}
    right = ("baseline", "candidate", "change", "95 % interval", "threshold", "q")
    columns = ("verdict", "case", *(("device",) if len(devices) > 1 else ()), *right)
    parts: list[object] = [_print.table(columns, (_row(each, len(devices) > 1) for each in shown), right=right)]
    words = [f"required, and no case is called so: {pattern}" for pattern in judgement.unmet]
    words += _reasons(shown)
    words += judgement.notes
    parts += [_print.plain(line, "yellow") for line in words[:_MOST_ROWS]]
    hidden = len(judgement.findings) - len(shown), len(words[_MOST_ROWS:])
    if any(hidden):
        parts.append(_print.plain(f"not shown: {hidden[0]} cases, {hidden[1]} lines like these; --json has them all"))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in judgement.counts().items())
    where = f" on {'+'.join(next(iter(devices)))}" if len(devices) == 1 else ""
    tally = f"{counts or 'nothing to judge'}{where}; {decided(judgement)}"
    return [*parts, _print.plain(f"{tally}: {_end(judgement, status)}", "bold")]


def _end(judgement: Judgement, status: int) -> str:
    """How the gate ended; it passed only if every case was decided."""
    if status or judgement.decided == judgement.cases:
        return _ENDS[status]
    return "none of them is slower" if judgement.decided else "no verdict"


def _reasons(findings: list[Finding]) -> list[str]:
    """Why what is not fine is not, each reason once with the cases it holds for."""
    from gpubench.judging.judge import explanation

    found: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        if finding.verdict not in _QUIET and (why := explanation(finding)):
            found.setdefault((finding.verdict, why), []).append(finding.case.id)
    more = {key: f" and {len(ids) - 1} more" if len(ids) > 1 else "" for key, ids in found.items()}
    return [f"{verdict}: {ids[0]}{more[verdict, why]}: {why}" for (verdict, why), ids in found.items()]


_ENDS = {0: "passed", 1: "a regression", 3: "a case failed", 4: "cannot be judged"}


def _row(finding: Finding, with_devices: bool) -> list[object]:
    import math

    from gpubench.judging import noise
    from gpubench.judging.judge import interval, signed

    cells: list[object] = [_print.plain(finding.verdict, _STYLES.get(finding.verdict, "")), finding.case.id]
    cells += [", ".join(finding.devices)] if with_devices else []
    cells += [_side(side.median, side.processes, finding.unit) for side in (finding.before, finding.after)]
    if finding.effect is None:
        return [*cells, "", "", "", ""]
    low, high = interval(finding)
    q = f"{finding.q:.2g}" if math.isfinite(finding.q) else ""
    return [*cells, signed(finding.change), f"{low} – {high}", noise.percent(math.expm1(finding.threshold)), q]


def _side(median: float, processes: int, unit: str) -> str:
    from gpubench.base import units

    if median != median:
        return ""
    return units.quantity(median, unit) + (f" ({processes})" if processes else "")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write(path: Path, text: str) -> None:
    from gpubench.base.errors import UsageError
    from gpubench.base.files import write_whole

    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another place") from error


def _append(path: Path, text: str) -> None:
    """A summary that cannot be written fails no gate."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        _print.err().print(_print.plain(f"cannot write {path}: {error.strerror}", "yellow"), soft_wrap=True)
