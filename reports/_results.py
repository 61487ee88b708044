"""Pack the results that a page carries for download: the run file if it is small enough, else the figures."""

import base64
import csv
import gzip
import io
from dataclasses import dataclass

from gpubench.api import report as gb

_HEADS = ("case", "devices", "status", "unit", "median", "low", "high", "noise", "samples")


@dataclass(frozen=True, slots=True)
class Results:
    """A gzipped file inside the page: its `content` is in base64, `text` describes it, and `size` is its size as text.

    `sha256` is the hash of the run file."""

    name: str
    text: str
    content: str
    size: str
    sha256: str


def results(summary: gb.Summary, enclosure: gb.Enclosure) -> Results:
    """Return the file that a page offers for download: the run file of the enclosure, or else the figures as CSV."""
    if enclosure.content:
        name, content = "run.jsonl.gz", enclosure.content
        sentence = "The anonymised run file of this page, for `gpubench show`, `report`, `compare` and `gate`."
    else:
        name, content = "figures.csv.gz", gzip.compress(_figures(summary).encode(), mtime=0)
        sentence = "The headline figure of every case, in SI units."
    sentence = " ".join(part for part in (sentence, enclosure.left_out) if part)
    return Results(
        name, sentence, base64.b64encode(content).decode(), gb.units.round_size(len(content)), enclosure.sha256
    )


def _figures(summary: gb.Summary) -> str:
    """Return the headline figure of every case as CSV with a header line, in SI units."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_HEADS)
    for spread in summary.spreads():
        figure = spread.figure
        cells = [spread.case.id, "+".join(spread.devices), spread.status]
        if figure:
            interval = figure.interval
            cells += [figure.unit, *map(repr, (interval.centre, interval.low, interval.high, figure.noise))]
            cells.append(str(figure.samples))
        writer.writerow([*cells, *[""] * (len(_HEADS) - len(cells))])
    return table.getvalue()
