"""Import the OSU Micro-Benchmarks (MPI, OpenSHMEM, UPC++): a table of message sizes; text.

MB are 10⁶ bytes (util/osu_util.h). Between two ranks, the latency is half a round trip. For a collective it is the mean
over the ranks, with `-f` also the least and the largest."""

import re
from dataclasses import dataclass, field

from gpubench.api import importer as gb

_TITLE = re.compile(r"#\s*OSU (?P<library>[A-Za-z+]+)(?:-(?P<buffers>\w+))? (?P<test>.+?) Test v(?P<version>[\d.]+)$")
_HEAD = re.compile(r"#\s*Size\s")
_QUANTITIES = (  # column without blanks, series, unit
    ("Bandwidth(MB/s)", "bandwidth", "MB/s"),
    ("MB/s", "bandwidth", "MB/s"),
    ("Messages/s", "messages", "item/s"),
    ("Latency(us)", "latency", "us"),
    ("AvgLatency(us)", "latency", "us"),
    ("MinLatency(us)", "min", "us"),
    ("MaxLatency(us)", "max", "us"),
    ("P50TailLat(us)", "p50", "us"),
    ("P90TailLat(us)", "p90", "us"),
    ("P99TailLat(us)", "p99", "us"),
)
_KNOWN = {"Size", "Iterations", "Validation", *(column for column, _, _ in _QUANTITIES)}


@dataclass(slots=True)
class _Tables(gb.Output):
    name: str = ""
    params: gb.Params = ()
    columns: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        if title := _TITLE.match(line):
            self.versions["osu"] = title["version"]
            self.name = title["test"].lower().replace(" ", "-")
            buffers = (("buffers", title["buffers"].lower()),) if title["buffers"] else ()
            self.params, self.columns = (("library", title["library"]), *buffers), []
        elif places := re.match(r"#\s*Send Buffer on (\w+) .*Receive Buffer on (\w+)", line):
            self.params = (*self.params, ("from", places[1].lower()), ("to", places[2].lower()))
        elif datatype := re.match(r"#\s*Datatype: (\w+)", line):
            self.params = (*self.params, ("type", datatype[1]))
        elif self.name and _HEAD.match(line):
            self.columns = [name.replace(" ", "") for name in re.split(r"\s{2,}", line.lstrip("# "))]
            if unknown := [name for name in self.columns if name not in _KNOWN]:
                raise gb.BadOutput(f"the column {unknown[0][:40]!r}: newer than the known versions")
        elif self.columns and re.match(r"\d+\s", line):
            self._add_row(gb.row(self.columns, line.split()))

    def _add_row(self, cells: dict[str, str]) -> None:
        series = gb.quantities(cells, _QUANTITIES)
        wrong = cells.get("Validation", "Pass") != "Pass"
        reason = "the received data are wrong"
        failure = {"status": "failed", "cause": "wrong-answer", "reason": reason} if wrong else {}
        self.add(self.name, (("size_bytes", gb.whole_number(cells["Size"])), *self.params), series, **failure)


def _read(text: str) -> gb.Imported:
    tables = _Tables("osu", "imported: messages as the OSU Micro-Benchmarks measured them")
    gb.read_lines(text, tables.take)
    names = tuple(dict.fromkeys(result.case.name for result in tables.results))
    curves = (gb.View("curve", name, (name,), x="size_bytes", log_x=True, log_y=True) for name in names)
    return tables.imported(*curves)


_SUMMARY = "OSU Micro-Benchmarks (MVAPICH): bandwidth and latency by message size; text"
importer: gb.Importer = gb.Reader(_SUMMARY, gb.has_line(_TITLE), _read)
