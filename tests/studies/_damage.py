"""Parts of recordings, and every way in which `damaged_files.py` damages them."""

from __future__ import annotations

import copy
import functools
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _make as make

from gpubench.analysis.phases import SUITE, TIMES
from gpubench.model import Case, Samples, SuiteInfo, disk, record

RECORDINGS = Path(__file__).parents[1] / "recordings"
MOST_RESULTS, MOST_VALUES, MOST_ROWS = 10, 16, 30
Document = dict[str, Any]

NUMBERS: dict[str, tuple[Any, ...]] = {
    "a number is 0": (0, 0.0, -0.0),
    "a number is negative": (-1, -1.0, -1e-9, -1e300),
    "a number is tiny": (5e-324, 1e-308, 1e-200, 1e-13, 1e-101),
    "a number is huge": (1e308, 1.7e308, 1e99, 1e20, 1e10),
    "an integer is huge": (10**300, 10**30, 2**63, 2**64, 2**31, -(2**63), 10**5000),
}
# The bounds of the ranges in `gpubench.model.limits`, which every reader must handle.
EDGES = {
    float: (0.0, 1e-12, 2e-12, 1e-6, 1e9, -1e9, 1e30, 1e-100, -1e-100, 1e100, -1e100),
    int: (0, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**127, -(2**127)),
}
OTHERS = (None, True, False, "", "x", 0, 1.5, [], {}, [[]], ["x", 1], {"a": 1}, "1e999")
TEXTS = (
    "",
    " ",
    "\x00",
    "\x1b[31m",
    "a\nb",
    "x" * 5000,
    "x" * 200_000,
    "../..",
    "host",
    "cuda:0",
    "cuda:99",
    "*",
    "s",
    "%",
)


def parts(count: int) -> list[list[Document]]:
    """Return parts of the recordings and a traced program, each as the documents of its lines without the end."""
    chooser = random.Random(0)
    files = sorted(RECORDINGS.rglob("*.jsonl.gz"))
    return [_traced_program(), *(_part_of_recording(files[number % len(files)], chooser) for number in range(1, count))]


def _traced_program() -> list[Document]:
    """Return the records that `profile --trace` writes; no recording has such records."""
    counts = tuple((name, "2") for name in ("kernels", "copies", "dropped"))
    kernel = [make.timing(*seconds, name=name) for name, seconds in (("total", (2.0,)), ("each", (0.5, 1.5)))]
    results = [
        make.result(
            *(make.timing(0.1 * number, name=name) for number, name in enumerate(TIMES)),
            of=make.case("trace", suite=SUITE),
            notes=counts,
            window=(0.0, 5.0),
        ),
        make.result(*kernel, make.timing(2.0, name="calls"), of=Case(SUITE, "kernel", (("name", "gemm"),))),
    ]
    columns = (("trace.time", (0.5, 1.5)), ("trace.stream", (7.0, None)), ("trace.result", (1.0, None)))
    slices = Samples("trace", "cuda:0", (1.0, 2.0), columns)
    lines = map(record.encode, (make.manifest(suites=(SuiteInfo(SUITE, "a program"),)), *results, slices))
    return [json.loads(line) for line in lines]


@functools.cache
def _documents(path: Path) -> list[Document]:
    """Return the records of a file; they must not be changed."""
    with disk.open_bytes(path) as file:
        return [json.loads(line) for line in file]


def _part_of_recording(path: Path, chooser: random.Random) -> list[Document]:
    """Return the manifest of a recording with a few results of one suite and a few records of samples."""
    documents = _documents(path)
    results = [result for result in documents if result["kind"] == "result"]
    suite = chooser.choice(results)["case"]["suite"]
    of_suite = [result for result in results if result["case"]["suite"] == suite]
    start = chooser.randrange(len(of_suite))
    samples = [document for document in documents if document["kind"] in ("samples", "remark")]
    kept = of_suite[start : start + MOST_RESULTS] + chooser.sample(samples, min(4, len(samples)))
    return [_shorten(document) for document in (documents[0], *kept)]


def _shorten(document: Document) -> Document:
    """Return a copy of a record with at most 16 values of a series and 30 samples of a counter."""
    short = copy.deepcopy(document)
    for series in short.get("series", ()):
        for name in ("values", "at"):
            del series.get(name, [])[MOST_VALUES:]
    if "columns" in short:
        del short["at"][MOST_ROWS:]
        short["columns"] = [[name, values[:MOST_ROWS]] for name, values in short["columns"]]
    return short


class Damage:
    """A way to damage a file: `apply` changes the documents of its lines in place."""

    def __init__(self, seed: str) -> None:
        self.chooser = random.Random(seed)

    def place(self, documents: list[Document], wanted: Callable[[Any], bool]) -> tuple[Any, Any] | None:
        """Return a random container and the key in it of a value that is wanted; None if 200 tries met none."""
        for _ in range(200):
            holder: Any = self.chooser.choice(documents)
            while holder:
                key = self.chooser.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
                value = holder[key]
                if wanted(value) and key != "kind":
                    return holder, key
                if not isinstance(value, dict | list):
                    break
                holder = value
        return None

    def put(self, documents: list[Document], wanted: Callable[[Any], bool], values: tuple[Any, ...]) -> None:
        """Replace a value; of a list of values, sometimes all of them."""
        if place := self.place(documents, wanted):
            holder, key = place
            value = self.chooser.choice(values)
            if isinstance(holder, list) and self.chooser.random() < 0.3:
                holder[:] = [value if wanted(child) else child for child in holder]
            holder[key] = value

    def number(self, documents: list[Document], values: tuple[Any, ...]) -> None:
        """Replace a number."""
        self.put(documents, _is_number, values)

    def edge(self, documents: list[Document]) -> None:
        """Replace a number by an end of the range of its type."""
        kind = self.chooser.choice((float, float, int))
        self.put(documents, lambda value: type(value) is kind, EDGES[kind])

    def text(self, documents: list[Document]) -> None:
        """Replace a text."""
        self.put(documents, lambda value: isinstance(value, str), TEXTS)

    def type(self, documents: list[Document]) -> None:
        """Replace a value by one of another type."""
        self.put(documents, lambda value: not isinstance(value, dict), OTHERS)

    def swap(self, documents: list[Document]) -> None:
        """Exchange two numbers, or two texts."""
        wanted = self.chooser.choice((_is_number, lambda value: isinstance(value, str)))
        first, second = self.place(documents, wanted), self.place(documents, wanted)
        if first and second:
            (first_list, here), (second_list, there) = first, second
            first_list[here], second_list[there] = second_list[there], first_list[here]

    def lists(self, documents: list[Document]) -> None:
        """Empty a list, double it, turn it round, shuffle it, or drop one of its items."""
        place = self.place(documents, lambda value: isinstance(value, list))
        if place:
            holder, key = place
            values = holder[key]
            changes: tuple[Callable[[], object], ...] = (
                values.clear,
                lambda: values.extend(copy.deepcopy(values)),
                values.reverse,
                lambda: self.chooser.shuffle(values),
                lambda: values and values.pop(self.chooser.randrange(len(values))),
            )
            self.chooser.choice(changes)()

    def key(self, documents: list[Document]) -> None:
        """Drop a key of an object, or add an unknown one."""
        holder = self.chooser.choice(list(_objects(self.chooser.choice(documents))))
        if holder and self.chooser.random() < 0.7:
            holder.pop(self.chooser.choice(list(holder)))
        else:
            holder["invented"] = 1

    def drop(self, documents: list[Document]) -> None:
        """Drop a record."""
        documents.pop(self.chooser.randrange(len(documents)))

    def repeat(self, documents: list[Document]) -> None:
        """Write a record twice; of a result, sometimes as another replicate."""
        again = copy.deepcopy(self.chooser.choice(documents))
        if again["kind"] == "result" and self.chooser.random() < 0.7:
            again["replicate"] = self.chooser.choice((1, 7, 10**6, 2**62))
        documents.append(again)

    def order(self, documents: list[Document]) -> None:
        """Put the records behind the manifest in another order."""
        rest = documents[1:]
        self.chooser.shuffle(rest)
        documents[1:] = rest

    def bytes(self, data: bytes) -> bytes:
        """Cut the file, or change some of its bytes."""
        if self.chooser.random() < 0.3:
            return data[: self.chooser.randrange(len(data))]
        changed = bytearray(data)
        for _ in range(self.chooser.randint(1, 4)):
            changed[self.chooser.randrange(len(changed))] = self.chooser.choice(b'0159-.eE",[]{}:\n\\ \x00\xff')
        return bytes(changed)


KINDS = (
    *NUMBERS,
    "a number at an end",
    "a text",
    "another type",
    "swapped",
    "a list",
    "a key",
    "dropped",
    "repeated",
    "reordered",
    "bytes",
)


def damaged(kind: str, part: list[Document], seed: str) -> bytes:
    """Return the content of a damaged file."""
    damage = Damage(seed)
    documents = copy.deepcopy(part)
    changes: dict[str, Callable[[list[Document]], None]] = {
        **{name: functools.partial(damage.number, values=values) for name, values in NUMBERS.items()},
        "a number at an end": damage.edge,
        "a text": damage.text,
        "another type": damage.type,
        "swapped": damage.swap,
        "a list": damage.lists,
        "a key": damage.key,
        "dropped": damage.drop,
        "repeated": damage.repeat,
        "reordered": damage.order,
        "bytes": lambda _: None,
    }
    for _ in range(damage.chooser.randint(1, 3)):
        changes[kind](documents)
    data = content(documents)
    return damage.bytes(data) if kind == "bytes" else data


def content(documents: list[Document]) -> bytes:
    """Return the file of these documents."""
    return b"".join(map(_line, documents))


def _line(document: Document) -> bytes:
    """Return a record as a line of a file; Python's limit on the digits of an integer is lifted for it."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(document, ensure_ascii=False).encode() + b"\n"
    finally:
        sys.set_int_max_str_digits(limit)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _objects(value: Any) -> Iterator[Document]:
    """Yield every object in a document, itself among them."""
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(child)
