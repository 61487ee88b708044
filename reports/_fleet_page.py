"""Collect the values that the template of a fleet's page shows, and draw the map: a tile for each GPU, by layers."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from gpubench.api import report as gb

from . import _svg as svg
from ._matrix import SHADES, bounds, strokes
from ._web import clipped, packed, written

_MOST_TILES = 16_000  # keeps the page of any fleet below 2 MB
_MOST_COLUMNS = 64
_BLOCK = 16  # nodes in a table if the racks are unknown
_BAND = 128  # nodes side by side in a small drawing
_RINGS = 50  # the most suspects that a small drawing marks
# Where the shades of a share begin, in per mille of the median. A fixed scale keeps a healthy fleet pale.
_SHARE_LIMITS = (990, 980, 960, 930, 880, 800)
_HOST = "host"

Numbers = npt.NDArray[np.float64]


class _Unit(NamedTuple):
    """How a layer writes its values: the factor to its unit, the digits after the point, the unit."""

    factor: float
    digits: int
    name: str


_SHARE = _Unit(100.0, 1, "%")
_READINGS = (  # the name of a reading, its unit, and its attribute of a standing
    ("temperature", _Unit(1.0, 0, "°C"), "temperature_c"),
    ("power", _Unit(1.0, 0, "W"), "power_w"),
    ("clock", _Unit(1e-9, 2, "GHz"), "clock_hz"),
)


class NodeRow(NamedTuple):
    """A node of the map, whose tiles start at the index `first`; `gone` says why it has none, or is empty."""

    node: str
    rack: str
    first: int
    gone: str


class MapLayer(NamedTuple):
    """One measure of all tiles: a share of the median, or a reading.

    `values`, shape (tiles,), are multiples of the last digit shown, NaN if missing; `text` writes one of them."""

    name: str
    description: str
    unit: _Unit
    values: Numbers
    limits: tuple[int, ...]  # where the shades begin: descending for shares, ascending for readings

    @property
    def shades(self) -> npt.NDArray[np.int64]:
        """The shade of each tile, an int64 array of shape (tiles,): 0 is the palest, -1 a tile without a value."""
        limits = np.array(self.limits)[:, None]
        beyond = self.values < limits if self.is_share else self.values >= limits
        return np.where(np.isnan(self.values), -1, beyond.sum(axis=0))

    @property
    def is_share(self) -> bool:
        return self.unit is _SHARE

    def text(self, value: float) -> str:
        """Return one of `values` as a tile shows it, without its unit; empty for NaN."""
        return "" if math.isnan(value) else f"{value / 10**self.unit.digits:.{self.unit.digits}f}"

    @property
    def legend(self) -> list[str]:
        """The range of values of each shade as texts, in the order of the shades; empty without limits."""
        ends = [self.text(limit) for limit in self.limits]
        unit = self.unit.name
        if self.is_share:
            below = [f"{high} to {low}" for low, high in itertools.pairwise(ends)]
            return [f"from {ends[0]} {unit}", *below, f"below {ends[-1]}"]
        between = [f"{low} to {high}" for low, high in itertools.pairwise(ends)]
        return [f"below {ends[0]} {unit}", *between, f"from {ends[-1]}"] if ends else []

    @property
    def range_text(self) -> str:
        """The lowest and the highest value with the unit: `93.3 to 100.6 %`; the layer must have a value."""
        return f"{self.text(np.nanmin(self.values))} to {self.text(np.nanmax(self.values))} {self.unit.name}"

    @property
    def data(self) -> dict[str, object]:
        """The layer for the script, as plain values; `falls` says that lower values are darker, as for shares."""
        return {
            "name": self.name,
            "description": self.description,
            "unit": self.unit.name,
            "digits": self.unit.digits,
            "legend": self.legend,
            "limits": self.limits,
            "falls": self.is_share,
            "values": [None if math.isnan(value) else int(value) for value in self.values.tolist()],
        }


class FleetMap(NamedTuple):
    """The tiles of a fleet, numbered row by row; `marks` has the anchor and the state of the suspect of a tile."""

    columns: tuple[str, ...]
    rows: tuple[NodeRow, ...]
    layers: tuple[MapLayer, ...]
    marks: dict[int, tuple[str, str]]
    faults: dict[int, str]  # tiles of components that are sick, or on which a case failed
    left_out: int  # the number of nodes without a row
    shown: int  # the index of the layer that the tables show


def fleet_map(judgement: gb.FleetJudgement, anchors: dict[tuple[str, str], tuple[str, str]]) -> FleetMap:
    """Return the map of a fleet, with at most 16 000 tiles and 64 columns: short ids first, the host last.

    `anchors` maps a node and a device id to the anchor and the state of their suspect."""
    standings_at: dict[tuple[str, str], list[gb.Standing]] = {}
    for standing in judgement.standings:
        for device in standing.place.devices:
            standings_at.setdefault((standing.place.node, device), []).append(standing)
    devices = {device for _, device in standings_at}
    columns = tuple(sorted(devices, key=lambda device: (device == _HOST, len(device), device))[:_MOST_COLUMNS])
    faults, measured = _faults(judgement), {node for node, _ in standings_at}
    reported = {node for node, _ in (*anchors, *faults)}
    racks = {rack: index for index, rack in enumerate(dict.fromkeys(node.rack for node in judgement.fleet.nodes))}
    nodes = sorted(judgement.fleet.nodes, key=lambda node: racks[node.rack])
    ranked = sorted(range(len(nodes)), key=lambda index: nodes[index].name in measured - reported)
    most = max(_MOST_TILES // max(len(columns), 1), 1)
    rows: list[NodeRow] = []
    tiles: list[tuple[str, str]] = []
    for node in (nodes[index] for index in sorted(ranked[:most])):
        has_tiles = node.name in measured
        gone = "" if has_tiles else "no results" if node.status == "answered" else node.status
        rows.append(NodeRow(node.name, node.rack, len(tiles), gone))
        tiles += [(node.name, column) for column in columns] if has_tiles else []
    layers = tuple(_layers(judgement, [standings_at.get(place, []) for place in tiles]))
    worst = judgement.suspects[0].findings[0].family if judgement.suspects else ""
    first = next((index for index, layer in enumerate(layers) if layer.name == worst), 0)
    marked = {index: anchors[place] for index, place in enumerate(tiles) if place in anchors}
    at_fault = {index: faults[place] for index, place in enumerate(tiles) if place in faults}
    return FleetMap(columns, tuple(rows), layers, marked, at_fault, len(nodes) - len(rows), first)


def _faults(judgement: gb.FleetJudgement) -> dict[tuple[str, str], str]:
    """Return the devices with a fault as `sick`, `failed` or `fast`, keyed by node and device id; the first wins."""
    fast = [finding.place for finding in judgement.fast]
    failed = [failure.place for failure in judgement.failures if failure.status == "failed"]
    return {
        **{(place.node, device): "fast" for place in fast for device in place.devices if len(place.devices) == 1},
        **{(place.node, device): "failed" for place in failed for device in place.devices if len(place.devices) == 1},
        **{(part.place.node, device): "sick" for part in judgement.sick for device in part.place.devices},
    }


def _layers(judgement: gb.FleetJudgement, tiles: Sequence[list[gb.Standing]]) -> Iterator[MapLayer]:
    links = {family for standing in judgement.standings if standing.kind == "link" for family, _ in standing.shares}
    shares = [[dict(standing.shares) for standing in tile] for tile in tiles]
    for family in judgement.families:
        values = [min((share[family] for share in tile if family in share), default=math.nan) for tile in shares]
        description = "the lowest share of each component and its links" if family in links else ""
        yield _layer(family, description or "share of the median of comparable components", _SHARE, values)
    singles = [next((part for part in tile if len(part.place.devices) == 1), None) for tile in tiles]
    for name, unit, reading in _READINGS:
        values = [getattr(part, reading, math.nan) for part in singles]
        if any(map(math.isfinite, values)):
            yield _layer(name, "while the cases ran", unit, values)


def _layer(name: str, description: str, unit: _Unit, values: Sequence[float]) -> MapLayer:
    """Return a layer of `values`, one for each tile: SI units for readings, fractions for shares, NaN if missing."""
    scaled = np.round(np.array(values, float) * unit.factor * 10**unit.digits)
    if unit is _SHARE:
        return MapLayer(name, description, unit, scaled, _SHARE_LIMITS)
    low, high = bounds(scaled)
    limits = dict.fromkeys(round(low + (high - low) * index / SHADES) for index in range(1, SHADES))
    return MapLayer(name, description, unit, scaled, tuple(limits))


def tables(tile_map: FleetMap) -> Markup:
    """Return the layer `tile_map.shown` as HTML tables: one for each rack, or for each sixteen nodes without racks.

    End tags that HTML does not need are left out, because thousands of tiles make half of the page."""
    shades = tile_map.layers[tile_map.shown].shades.tolist() if tile_map.layers else []
    backends = {column.partition(":")[0] for column in tile_map.columns} - {_HOST}
    # `0` for `cuda:0` if all GPUs are of one backend
    names = [column.rpartition(":")[2] if len(backends) == 1 else column for column in tile_map.columns]
    heads = "".join(f"<th scope=col>{escape(name)}" for name in names)
    parts = []
    has_racks = any(row.rack for row in tile_map.rows)
    blocks: dict[str | int, list[NodeRow]] = {}
    for index, row in enumerate(tile_map.rows):
        blocks.setdefault((row.rack or "no rack") if has_racks else index // _BLOCK, []).append(row)
    for block, rows in blocks.items():
        caption = f"<caption>{escape(block)}</caption>" if has_racks else ""
        parts.append(f"<table>{caption}<thead><tr><th scope=col>node{heads}<tbody>")
        for row in rows:
            parts.append(f"<tr><th scope=row>{escape(row.node)}")
            if row.gone:
                parts.append(f'<td class=gone colspan="{max(len(tile_map.columns), 1)}">{escape(row.gone)}')
                continue
            parts += [_tile(tile_map, row.first + place, shades) for place in range(len(tile_map.columns))]
        parts.append("</table>\n")
    return written(parts)


def _tile(tile_map: FleetMap, index: int, shades: Sequence[int]) -> str:
    layer = tile_map.layers[tile_map.shown]
    text = layer.text(layer.values[index])
    anchor, state = tile_map.marks.get(index, ("", ""))
    names = [f"h{shades[index]}"] if shades[index] > 0 else []
    names += [name for name in (state, tile_map.faults.get(index, "")) if name]
    class_ = f' class="{" ".join(names)}"' if names else ""
    return f"<td{class_}><a href=#{anchor}>{text or '–'}</a>" if anchor else f"<td{class_}>{text}"


def overview(tile_map: FleetMap, layer: MapLayer) -> Markup:
    """Draw a layer as a small picture: nodes from left to right, 128 in a band, their GPUs from top to bottom.

    At most 50 tiles of suspects have a ring."""
    height, wide = len(tile_map.columns), min(len(tile_map.rows), _BAND)
    bands = math.ceil(len(tile_map.rows) / _BAND)
    cells = np.full((max(bands * (height + 1) - 1, 1), max(wide, 1)), -1)
    shades, rings = layer.shades, []
    for place, row in enumerate(tile_map.rows):
        band, column = divmod(place, _BAND)
        top = band * (height + 1)
        if not row.gone:
            cells[top : top + height, column] = shades[row.first : row.first + height]
            rings += [(column, top + tile) for tile in range(height) if row.first + tile in tile_map.marks]
    paths = [
        svg.element("path", d="".join(strokes(cells >= shade)), class_=f"run h{shade}")
        for shade in range(SHADES)
        if (cells >= shade).any()
    ]
    step = 200.0 / cells.shape[1]
    high = min(step, 12.0)
    drawn = svg.element("g", *paths, transform=f"translate(0 {high / 2:.6g}) scale({step:.6g} {high:.6g})")
    marks = [
        svg.element("circle", cx=(x + 0.5) * step, cy=(y + 0.5) * high, r=max(high, 4.0) * 0.6, class_="ring")
        for x, y in rings[:_RINGS]
    ]
    description = f"{layer.name}: nodes from left to right, their components from top to bottom"
    return svg.picture(description, cells.shape[0] * high, drawn, *marks, width=200.0)


def readings_text(standing: gb.Standing) -> str:
    """Return a component's shares of the median, by family, and its known readings: `memory 99.8 %, power 612 W`."""
    parts = [f"{family} {gb.units.percent(share)}" for family, share in standing.shares]
    for name, unit, reading in _READINGS:
        value = getattr(standing, reading)
        if math.isfinite(value):
            parts.append(f"{name} {value * unit.factor:.{unit.digits}f} {unit.name}")
    return ", ".join(parts)


_MOST_SUSPECTS, _MOST_FINDINGS, _MOST_CASES, _MOST_LINES = 300, 1000, 2000, 200
_MOST_GROUPS = 20
_FEW_SUSPECTS = 5  # with no more suspects, their cases are open from the start
_NONE = "–"
_BASES = {"others": "the others", "baseline": "the baseline", "floor": "the floor"}
_REST = "`gpubench fleet judge … -o fleet.json` lists all"


def fleet_page(judgement: gb.FleetJudgement) -> dict[str, object]:
    """Return the values of the page, with at most 300 suspects and 200 missing nodes; the others are counted.

    The texts of the judgement must be free of control characters: the template only escapes them."""
    text = gb.fleet_text
    tile_map = fleet_map(judgement, _anchors(judgement.suspects))
    missing = [node for node in judgement.fleet.nodes if node.status != "answered"]
    suspects = list(_suspects(judgement))
    return {
        "title": text.devices_text(judgement),
        "judgement": judgement,
        "text": text,
        "bases": _BASES,
        "clipped": clipped,
        "quantity": lambda value, unit: gb.units.quantity(value, unit) if math.isfinite(value) else _NONE,
        "percent": lambda fraction: gb.units.percent(fraction) if math.isfinite(fraction) else _NONE,
        "style": _style(judgement),
        "reasons": list(_reasons(judgement)),
        "map": tile_map,
        "tile": "host"
        if tile_map.columns == (_HOST,)
        else "GPU"
        if _HOST not in tile_map.columns
        else "GPU or the host",
        "medians": list(gb.fleet_text.medians_tables(judgement)),
        "groups": judgement.groups[:_MOST_GROUPS],
        "more_groups": max(len(judgement.groups) - _MOST_GROUPS, 0),
        "tables": tables(tile_map),
        "legend": tile_map.layers[tile_map.shown].legend if tile_map.layers else (),
        "small": [
            (index, layer.name, layer.range_text, overview(tile_map, layer))
            for index, layer in enumerate(tile_map.layers)
            if not all(map(math.isnan, layer.values))
        ],
        "data": packed({"devices": tile_map.columns, "layers": [layer.data for layer in tile_map.layers]}),
        "suspects": suspects,
        "are_open": len(suspects) <= _FEW_SUSPECTS,
        "more_suspects": len(judgement.suspects) - len(suspects),
        "missing": missing[:_MOST_LINES],
        "more_missing": max(len(missing) - _MOST_LINES, 0),
        "failures": judgement.failures[:_MOST_LINES],
        "notes": list(_notes(judgement, tile_map)),
    }


def _style(judgement: gb.FleetJudgement) -> str:
    if judgement.sick or judgement.of("confirmed") or any(failure.status == "failed" for failure in judgement.failures):
        return "bad"
    return "warning" if judgement.of("suspect") or not judgement.is_judged else "good"


def _reasons(judgement: gb.FleetJudgement) -> Iterator[str]:
    answered = len(judgement.fleet.nodes) - len(judgement.missing_nodes)
    yield f"{answered} of {len(judgement.fleet.nodes)} nodes answered."
    if judgement.is_judged:
        yield f"Components were compared with {gb.fleet_text.compared_with(judgement)}."
    if detectable := gb.fleet_text.detectable_text(judgement):
        yield f"The smallest detectable slowdown: {detectable}."
    for standing in judgement.sick[:_MOST_LINES]:
        yield f"Sick: {standing.place.text}: {clipped('; '.join(standing.sick))}"
    text = gb.fleet_text
    odd = [*text.setting_sentences(judgement), *text.fast_sentences(judgement), *text.population_sentences(judgement)]
    for line in map(clipped, odd[:_MOST_LINES]):
        yield f"{line[:1].upper()}{line[1:]}."


def _anchors(suspects: Sequence[gb.Suspect]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the anchor and the state of the suspect to which the tile of a node's device links; links come last."""
    anchors: dict[tuple[str, str], tuple[str, str]] = {}
    numbered = list(enumerate(suspects[:_MOST_SUSPECTS], 1))
    for number, suspect in sorted(numbered, key=lambda pair: pair[1].unit == "link"):
        for device in suspect.place.devices:
            anchors.setdefault((suspect.place.node, device), (f"suspect-{number}", suspect.state))
    return anchors


def _suspects(judgement: gb.FleetJudgement) -> Iterator[dict[str, object]]:
    """Yield the first 300 suspects with their listed findings and cases; `more` counts what is left out."""
    standings = {standing.place: standing for standing in judgement.standings}
    findings_left, cases_left = _MOST_FINDINGS, _MOST_CASES
    for suspect in judgement.suspects[:_MOST_SUSPECTS]:
        findings, cases = suspect.findings[: max(findings_left, 1)], suspect.cases[: max(cases_left, 0)]
        findings_left, cases_left = findings_left - len(findings), cases_left - len(cases)
        parts = [standings[place] for place in suspect.parts if place in standings]
        yield {
            "suspect": suspect,
            "uuids": ", ".join(filter(None, suspect.uuids)),
            "readings": [f"{standing.place.text}: {readings_text(standing)}" for standing in parts],
            "findings": findings,
            "cases": cases,
            "more": len(suspect.findings) - len(findings) + len(suspect.cases) - len(cases),
        }


def _notes(judgement: gb.FleetJudgement, tile_map: FleetMap) -> Iterator[str]:
    yield from map(clipped, judgement.notes[:_MOST_LINES])
    if (more := len(judgement.notes) - _MOST_LINES) > 0:
        yield f"{more} more notes are left out: {_REST}"
    if (more := len(judgement.failures) - _MOST_LINES) > 0:
        yield f"{more} more components with failed cases are left out: {_REST}"
    if tile_map.left_out:
        yield f"{tile_map.left_out} nodes that answered and have no finding are left out of the map: {_REST}"
