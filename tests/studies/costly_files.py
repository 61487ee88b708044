"""Measure the cost of files made to take much time or memory: each is refused or shown in time linear in its size.

    bash ci/study.sh costly_files [NAME…]        default all of them

Each file goes through commands in processes of their own. The table says of each file its size on the disk, and of each
command its exit status, its processor time in seconds, and the largest memory of its process in MiB, but no less than
that of this script, from which it is forked. A command is ended after a minute (status -24). The least time of three
counts, with bytecode as in an installed package; `above` marks what takes more than 2.4 s or 241 MiB, the limits.
"""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import _make as make

from gpubench import model
from gpubench.model import limits, record, store

GPUBENCH = Path(sys.executable).parent / "gpubench"
HEAD = record.encode(make.manifest())
MIB = 2**20
MOST_S, MOST_MIB = 2.4, 241.0
BYTECODE = tempfile.TemporaryDirectory()
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": BYTECODE.name}


def _numbered(count: int, **fields: object) -> Iterator[model.Result]:
    for number in range(count):
        yield make.result(make.timing(1e-3, 2e-3, moved=1e6), of=make.case(n=number), **fields)


def _content(*results: model.Result, **fields: object) -> bytes:
    return store.encode_run(make.run(*results, **fields))


def _line(inside: bytes) -> bytes:
    return HEAD + b'{"kind":"result","case":' + inside + b"}\n"


def _many_devices(count: int) -> bytes:
    """Return a run file with `count` devices and one result of each."""
    devices = tuple(make.device(f"cuda:{number}") for number in range(count))
    return _content(
        *(make.result(of=make.case(n=n), devices=(device.id,)) for n, device in enumerate(devices)),
        facts=make.facts(*devices),
    )


def _many_suites(count: int) -> bytes:
    """Return a run file with `count` suites and one result of each."""
    names = [f"suite{number}" for number in range(count)]
    suites = tuple(
        model.SuiteInfo(name, "one of many", (model.View("curve", "all", ("triad",), x="n"),)) for name in names
    )
    return _content(*(make.result(of=make.case(suite=name, n=1)) for name in names), suites=suites)


def _many_counters(count: int) -> bytes:
    """Return a run file with `count` counters of two readings each."""
    counters = tuple(replace(make.POWER, name=f"nvml.power{number}") for number in range(count))
    samples = make.samples([1.0, 2.0], **{f"power{number}": [1.0, 2.0] for number in range(count)})
    return store.encode_run(make.run(make.result(), sampled=[samples], counters=counters))


def _many_series(count: int) -> bytes:
    return _content(make.result(*(make.timing(1e-3, name=f"observed{number}") for number in range(count))))


def _remarks(count: int, text: str) -> bytes:
    """Return a run file with `count` remarks, each ending in `words`."""
    return HEAD + b"".join(
        record.encode(model.Remark(0.0, "lost", "nvml", "", f"{number} {text}")) for number in range(count)
    )


def _views(count: int) -> bytes:
    views = tuple(model.View("curve", f"view {number}", ("triad",), x="n") for number in range(count))
    return _content(*_numbered(2000), suites=(model.SuiteInfo("bandwidth", "many views", views),))


FILES: dict[str, Callable[[], bytes]] = {
    "a million keys": lambda: _line(b"{" + b",".join(b'"k%d":0' % n for n in range(10**6)) + b"}"),
    "a million equal keys": lambda: _line(b"{" + b'"key":0,' * 10**6 + b'"key":0}'),
    "200 000 keys": lambda: _line(b"{" + b",".join(b'"k%d":0' % n for n in range(200_000)) + b"}"),
    "a million lists in lists": lambda: _line(b"[" * 10**6 + b"]" * 10**6),
    "200 000 objects in objects": lambda: _line(b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
    "a million empty objects": lambda: _line(b"[" + b"{}," * 10**6 + b"{}]"),
    "a number of a million digits": lambda: _line(b"1" * 10**6),
    "a text of 15 MiB": lambda: _line(b'{"suite":"' + b"x" * 15 * MIB + b'"}'),
    "a line of 100 MB": lambda: HEAD + b"x" * 10**8,
    "100 kB of empty lines": lambda: b"\n" * 10**5,
    "10 MB of empty lines": lambda: b"\n" * 10**7,
    "12 MB of wrong values": lambda: _content(make.result()).replace(b"[0.001]", b"[" + b'"",' * (4 * 10**6) + b'""]'),
    "a million values": lambda: _content(make.result(make.timing(*[1e-3] * 10**6))),
    "a million values of bits": lambda: _content(make.result(make.timing(*(n * 1e-9 for n in range(1, 10**6))))),
    "100 000 series": lambda: HEAD + record.encode(make.result(*[make.timing(1e-3)] * 100_000)),
    "5000 series": lambda: _many_series(5000),
    "20 000 cases": lambda: _content(*_numbered(20_000)),
    "20 000 failed cases": lambda: _content(
        *(make.result(of=make.case(n=n), status="failed", reason=f"reason {n}") for n in range(20_000))
    ),
    "20 000 replicates": lambda: _content(*(make.result(replicate=number) for number in range(20_000))),
    "5000 suites with views": lambda: _many_suites(5000),
    "200 views of a suite": lambda: _views(200),
    "5000 devices": lambda: _many_devices(5000),
    "5000 counters": lambda: _many_counters(5000),
    "90 000 remarks": lambda: _remarks(90_000, "gone"),
    "200 remarks of 100 kB": lambda: _remarks(200, "x" * 10**5),
    "a long name in every case": lambda: _content(*(make.result(of=make.case("x" * 4000, n=n)) for n in range(2000))),
    "100 axes in every case": lambda: _content(
        *(make.result(of=make.case(**{f"a{axis}": n for axis in range(90)})) for n in range(2000))
    ),
}
PACKED: dict[str, Callable[[], bytes]] = {
    "gzip of a million remarks": lambda: _remarks(10**6, "gone"),
    "gzip of 500 MB of zeros": lambda: bytes(5 * 10**8),
    "gzip of 500 MB of newlines": lambda: HEAD + b"\n" * (5 * 10**8),
    "gzip of 300 MB of one remark": lambda: (
        HEAD + record.encode(model.Remark(0.0, "lost", "n", "", "x" * 10**5)) * 3000
    ),
}
assert limits.FILE_RESULTS >= 20_000


def commands(file: Path, folder: Path) -> Iterator[tuple[str, list[str | Path]]]:
    """Yield the commands that a file goes through."""
    yield "show", ["show", file]
    yield "show --all", ["show", file, "--all"]
    for form in ("html", "md", "json"):
        yield form, ["report", file, "-o", folder / f"out.{form}", "--force"]
    yield "redact", ["redact", file, "-o", folder / "out.jsonl", "--force"]
    yield "compare", ["compare", file, file]
    yield "history", ["history", "import", file, "--store", folder / f"{file.name}.sqlite"]
    yield "import", ["import", file, "-o", folder / "imported.jsonl", "--force"]


def cost(arguments: list[str | Path], folder: Path) -> str:
    """Return the exit status, the least processor time and the most memory of three times a command.

    Before each, the histories in `folder` are removed."""
    nowhere = subprocess.DEVNULL
    seconds, mib = [], []
    for _ in range(3):
        for history in folder.glob("*.sqlite*"):
            history.unlink()
        child = subprocess.Popen(
            [GPUBENCH, *arguments], stdout=nowhere, stderr=nowhere, preexec_fn=_limited, env=ENVIRONMENT
        )
        _, status, used = os.wait4(child.pid, 0)
        seconds.append(used.ru_utime + used.ru_stime)
        mib.append(used.ru_maxrss / 1024)
    above = "  above" if min(seconds) > MOST_S or max(mib) > MOST_MIB else ""
    return f"{os.waitstatus_to_exitcode(status):3} {min(seconds):7.2f} {max(mib):6.0f}{above}"


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (60, 70))
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))


def main(names: list[str]) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, made in (FILES | PACKED).items():
            if names and name not in names:
                continue
            file = folder / ("costly.jsonl.gz" if name in PACKED else "costly.jsonl")
            file.write_bytes(gzip.compress(made(), 6) if name in PACKED else made())
            print(f"{name}, {file.stat().st_size / 1e6:.2f} MB", flush=True)  # noqa: T201
            for command, arguments in commands(file, folder):
                print(f"    {command:12}{cost(arguments, folder)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
