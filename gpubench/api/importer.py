'''The names with which an importer of another tool's output is written.

An importer is a file whose attribute `importer` has a `summary`, `accepts(text)` and `read(text)`: pure functions of
the text that a tool printed. It states its quantities as a table of column, name of the series and printed unit. The
unit gives the SI unit and whether more is better:

    """Import copybench: the time and the bandwidth of each copy, as text."""

    import re

    from gpubench.api import importer as gb

    _HEAD = re.compile(r"bytes +ms +GB/s")
    _QUANTITIES = (("GB/s", "bandwidth", "GB/s"), ("ms", "time", "ms"))  # column, series, unit; the headline first


    def _read(text: str) -> gb.Imported:
        output, head = gb.Output("copybench", "imported: copies as copybench measured them"), []

        def take(line: str) -> None:
            if _HEAD.match(line):
                head[:] = line.split()
            elif head:
                cells = gb.row(head, line.split())
                size = gb.whole_number(cells["bytes"])
                output.add("copy", (("size_bytes", size),), gb.quantities(cells, _QUANTITIES))

        gb.read_lines(text, take)
        return output.imported(gb.View("curve", "Copies", output.cases(), x="size_bytes", log_x=True))


    importer: gb.Importer = gb.Reader("copybench: copies by size; text", gb.has_line(_HEAD), _read)

It raises BadOutput if the text is damaged or newer than the known versions: no row is skipped, and no unit is guessed.
Facts that the tool does not print stay missing.'''

from gpubench.authoring.outputs import (
    UNSTATED,
    Output,
    Quantities,
    Reader,
    Row,
    StreamReader,
    clean,
    has,
    has_line,
    json_object,
    json_objects,
    json_value,
    make_device,
    measured_number,
    number,
    number_or_text,
    place,
    quantities,
    quantity,
    read_lines,
    row,
    size_bytes,
    to_si,
    whole_number,
)
from gpubench.base.errors import BadOutput
from gpubench.base.json_stream import NotAList, objects_of
from gpubench.explaining.traced import TracedOperators
from gpubench.knowledge.language_models import LANGUAGE_MODELS, Model, model_named, model_of_size
from gpubench.knowledge.operators import Operator
from gpubench.model import Case, Device, Params, Result, Series, View, Work
from gpubench.plugins.importer import Imported, Importer, StreamImporter

__all__ = [
    "LANGUAGE_MODELS",
    "UNSTATED",
    "BadOutput",
    "Case",
    "Device",
    "Imported",
    "Importer",
    "Model",
    "NotAList",
    "Operator",
    "Output",
    "Params",
    "Quantities",
    "Reader",
    "Result",
    "Row",
    "Series",
    "StreamImporter",
    "StreamReader",
    "TracedOperators",
    "View",
    "Work",
    "clean",
    "has",
    "has_line",
    "json_object",
    "json_objects",
    "json_value",
    "make_device",
    "measured_number",
    "model_named",
    "model_of_size",
    "number",
    "number_or_text",
    "objects_of",
    "place",
    "quantities",
    "quantity",
    "read_lines",
    "row",
    "size_bytes",
    "to_si",
    "whole_number",
]
