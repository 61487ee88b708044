"""Write the judgement of a fleet as GitHub Markdown in at most 60 lines: the worst first, the rest counted."""

from collections.abc import Iterator, Sequence

from gpubench.api import report as gb

from ._markdown import clipped, table

_MOST_SUSPECTS, _MOST_LINES, _MOST_KEY_LINES = 15, 6, 3
_WHOLE = "a report with `-o fleet.html` or `-o fleet.json` lists them all"


def fleet_markdown(judgement: gb.FleetJudgement) -> str:
    """Return the Markdown document, which ends with a newline."""
    lines = [
        f"# {gb.escape(clipped(gb.fleet_text.devices_text(judgement)))}",
        "",
        f"**{gb.escape(clipped(gb.fleet_text.fleet_answer(judgement)))}**",
        "",
        *_key_lines(judgement),
        *_suspects(judgement.suspects),
        *_section("Nodes that did not answer", gb.fleet_text.missing_node_lines(judgement)),
        *_section("Notes", judgement.notes),
    ]
    return "\n".join(lines) + "\n"


def _key_lines(judgement: gb.FleetJudgement) -> Iterator[str]:
    """Yield the list items below the verdict, each as one line of Markdown."""
    if judgement.is_judged:
        yield f"- Compared with {gb.fleet_text.compared_with(judgement)}."
    if detectable := gb.fleet_text.detectable_text(judgement):
        yield f"- Smallest detectable slowdown: {gb.escape(clipped(detectable))}."
    answered = len(judgement.fleet.nodes) - len(judgement.missing_nodes)
    yield f"- {answered} of {len(judgement.fleet.nodes)} nodes answered."
    sick = [f"{standing.place.text}: {standing.sick[0]}" for standing in judgement.sick]
    yield from (f"- **sick:** {gb.escape(clipped(line))}" for line in sick[:_MOST_KEY_LINES])
    failures = [gb.fleet_text.failure_text(failure) for failure in judgement.failures]
    yield from (f"- **failed:** {gb.escape(clipped(line))}" for line in failures[:_MOST_KEY_LINES])
    for line in gb.fleet_text.population_sentences(judgement)[:_MOST_KEY_LINES]:
        yield f"- {gb.escape(clipped(line))}"
    for line in gb.fleet_text.next_steps_text(judgement):
        yield f"- **next:** {gb.escape(clipped(line))}"


def _suspects(suspects: Sequence[gb.Suspect]) -> Iterator[str]:
    """Yield the lines of a section with at most fifteen suspects in a table, and the number of the others."""
    if not suspects:
        return
    yield from ("", "## Suspects", "")
    heads = ("kind", "place", "family", "slowest case", "slowdown", "detectable", "state", "cause")
    yield from table(heads, map(_cells, suspects[:_MOST_SUSPECTS]))
    if (rest := len(suspects) - _MOST_SUSPECTS) > 0:
        yield from ("", f"{rest} more suspects: {_WHOLE}.")


def _cells(suspect: gb.Suspect) -> tuple[str, ...]:
    worst = suspect.findings[0]
    state = gb.fleet_text.STATES[suspect.state]
    return (
        suspect.unit,
        gb.escape(clipped(suspect.name)),
        gb.escape(clipped(worst.family)),
        gb.code(clipped(worst.case)) if worst.case else "all together",
        gb.units.percent(worst.slowdown),
        gb.units.percent(worst.detectable),
        f"**{state}**" if suspect.state == "confirmed" else state,
        gb.escape(clipped(gb.fleet_text.causes_text(suspect))),
    )


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a section that lists at most six of `lines` and counts the others."""
    if not lines:
        return
    yield from ("", f"## {title}", "")
    yield from (f"- {gb.escape(clipped(line))}" for line in lines[:_MOST_LINES])
    if (rest := len(lines) - _MOST_LINES) > 0:
        yield f"- and {rest} more: {_WHOLE}"
