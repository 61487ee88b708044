"""Draws the gallery from the recordings: docs/gallery.md and its pictures.

    .venv/bin/python docs/gallery/make.py             what stands in docs
    .venv/bin/python docs/gallery/make.py FOLDER      also the whole pages, into a folder

A picture is a drawing of a report's page with its legend and the part of the style sheet that it needs.
"""

from __future__ import annotations

import dataclasses
import html
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench import plugins
from gpubench.judging import comparison
from gpubench.model import store
from gpubench.tools import enclosing
from gpubench.tools.gating import readings

_DOCS = Path(__file__).parents[1]
_PICTURES = _DOCS / "gallery"
_RECORDINGS = _DOCS.parent / "tests/recordings"
_RUN = "whole/h200"
_COMPARED = ("longer/base", "longer/3")
_SHOWN = {  # by section of the page: the titles of the drawings to show, and the index if several have one title
    "Roofline": (("All cases that declare both operations and bytes", 0),),
    "bandwidth": (("Memory bandwidth by STREAM kernel", 0), ("Host-to-device bandwidth", 0)),
    "gemm": (("GEMM throughput by precision and size", 0), ("GEMV bandwidth by size of the weights", 0)),
    "latency": (
        ("Memory latency by working set", 0),
        ("Last-level cache latency by compute unit and slice", 1),
    ),
    "Counters over time": (("nvml.power", 0), ("nvml.event_reasons", 0)),
}
_PAYING = "whole/h200x2"
_PAYS = (
    ("Compression throughput by ratio", 0),
    ("Break-even link bandwidth by codec", 0),
    ("Throughput of compressed transfers by link", 0),
)
_LEAD = (
    "`.venv/bin/python docs/gallery/make.py` draws these pictures from the\n"
    "[recordings](../tests/recordings/README.md); with the name of a folder it also writes the whole pages there.\n"
    "On a page every point names its case under the pointer, tables stand beside the charts, counters zoom, and\n"
    "every case opens to show how it was measured."
)

_FIGURE = re.compile(
    r"<figure[^>]*>\s*<figcaption><strong>(?P<title>.*?)</strong>(?: <span>(?P<note>.*?)</span>)?</figcaption>\s*"
    r'<div class="drawing">(?P<drawing><svg.*?</svg>)</div>(?P<rest>.*?)</figure>',
    re.DOTALL,
)
_SECTION = re.compile(r"<h2[^>]*>(?P<name>[^<]*)</h2>(?P<inside>.*?)</section>", re.DOTALL)
_LEGEND = re.compile(r'<line [^>]*class="line (?P<colour>[\w ]+)"/>.*?</svg>(?P<label>.*?)</li>', re.DOTALL)
_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_RULE = re.compile(r"(?:\s*@media[^{]*\{\s*:root \{[^}]*\}\s*\}|[^{}]+\{[^}]*\})")
_LETTER, _LINE, _COLUMNS = 6.8, 18.0, 2  # in a legend: width of a letter and height of a line in pixels, and columns


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that stands alone, with what is written about it."""

    name: str
    title: str
    note: str
    svg: str

    @property
    def markdown(self) -> str:
        """The picture as a document shows it."""
        words = html.unescape(f"{self.title}: {self.note}" if self.note else self.title)
        return f"![{html.unescape(self.title)}](gallery/{self.name}.svg)\n\n*{words}*\n"


def pictures(page: str) -> Iterator[tuple[str, list[Picture]]]:
    """The pictures of each section of a page, by the section's name."""
    style = _style(page)
    for section in _SECTION.finditer(page):
        name = html.unescape(section["name"])
        yield name, [_picture(found, name, style) for found in _FIGURE.finditer(section["inside"])]


def _picture(found: re.Match[str], section: str, style: str) -> Picture:
    name = re.sub(r"[^a-z0-9]+", "-", html.unescape(f"{section}-{found['title']}").lower()).strip("-")
    return Picture(name, found["title"], found["note"] or "", _alone(found["drawing"], found["rest"], style))


def _alone(drawing: str, rest: str, style: str) -> str:
    """A drawing as a file of its own: its style, a sheet of paper behind it, its legend below."""
    box = _BOX.search(drawing)
    if box is None:
        raise SystemExit("a drawing has no size")
    width, height = float(box[1]), float(box[2])
    entries = list(_LEGEND.finditer(rest))
    column = width / _COLUMNS
    legend = "".join(
        _entry(entry, 8 + column * (index % _COLUMNS), height + 14 + _LINE * (index // _COLUMNS), column)
        for index, entry in enumerate(entries)
    )
    total = height + _LINE * -(-len(entries) // _COLUMNS) + 8
    head = drawing[: drawing.index(">")].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')
    head = head.replace(box[0], f'viewBox="0 0 {width:g} {total:g}"')
    inner = drawing[drawing.index(">") + 1 : drawing.rindex("</svg>")]
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    return f"{head}><style>{style}</style>{paper}{inner}{legend}</svg>\n"


def _entry(entry: re.Match[str], x: float, y: float, width: float) -> str:
    label = html.unescape(entry["label"])
    most = int((width - 40) / _LETTER)
    label = html.escape(label if len(label) <= most else label[: most - 1] + "…")
    line = f'<line x1="{x:g}" y1="{y - 4:g}" x2="{x + 18:g}" y2="{y - 4:g}" class="line {entry["colour"]}"/>'
    return f'{line}<text x="{x + 24:g}" y="{y:g}">{label}</text>'


def _style(page: str) -> str:
    """The rules of a page's style sheet that its drawings need."""
    sheet = _STYLE.search(page)
    rules = _RULE.findall(sheet[1] if sheet else "")
    kept = [
        rule.strip() for rule in rules if re.match(r"\s*(:root|@media screen and \(pref|svg |\.[ch]\d+ |\.run)", rule)
    ]
    return "svg { font-family: system-ui, sans-serif; }\n" + "\n".join(kept)


def _document(report: str, paying: str, compared: str) -> tuple[str, list[Picture]]:
    drawn = dict(pictures(report))
    pays = [_chosen(dict(pictures(paying))["compression"], *each) for each in _PAYS]
    shown = {section: [_chosen(drawn[section], *each) for each in wanted] for section, wanted in _SHOWN.items()}
    effects = [dataclasses.replace(each, name="effects") for _, found in pictures(compared) for each in found][:1]
    names = " ".join(f"tests/recordings/{name}.jsonl.gz" for name in _COMPARED)
    parts = [
        "# Gallery",
        _LEAD,
        f"## A run\n\n    gpubench report tests/recordings/{_RUN}.jsonl.gz -o report.html",
        "Some of the drawings of `gpubench run all` on one NVIDIA H200.",
        *(f"### {section}\n\n" + "\n".join(each.markdown for each in found) for section, found in shown.items()),
        f"## When compression pays\n\n    gpubench report tests/recordings/{_PAYING}.jsonl.gz -o report.html",
        "Some of the drawings of the suite `compression` on two NVIDIA H200.",
        *(picture.markdown for picture in pays),
        f"## Two runs\n\n    gpubench compare {names} -o compare.html",
        "The kernels of the second run were made 3 % longer.",
        *(picture.markdown for picture in effects),
    ]
    text = "\n\n".join(part.rstrip() for part in parts) + "\n"
    return text, [*(picture for found in shown.values() for picture in found), *pays, *effects]


def _chosen(drawn: list[Picture], title: str, index: int) -> Picture:
    return [each for each in drawn if html.unescape(each.title) == title][index]


def main(folder: Path | None) -> None:
    """Write the gallery, and into a folder the whole pages."""
    report = plugins.load("reports", "html")
    run, paying = (_page(report, _recording(name)) for name in (_RUN, _PAYING))
    found = readings.read_all([_recording(name) for name in _COMPARED])
    found = [dataclasses.replace(each, source=name) for each, name in zip(found, _COMPARED, strict=True)]
    compared = report.compare(comparison.compare(found, lambda _: 0.02))
    text, drawn = _document(run, paying, compared)
    for old in _PICTURES.glob("*.svg"):
        old.unlink()
    for picture in drawn:
        (_PICTURES / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
    (_DOCS / "gallery.md").write_text(text, encoding="utf-8")
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text(run, encoding="utf-8")
        (folder / "compression.html").write_text(paying, encoding="utf-8")
        (folder / "compare.html").write_text(compared, encoding="utf-8")


def _page(report: Any, path: Path) -> str:
    read = store.read_run(path)
    page: str = report.enclose(read, enclosing.enclosure(read, path))
    return page


def _recording(name: str) -> Path:
    return _RECORDINGS / f"{name}.jsonl.gz"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
