"""Import nccl-tests and rccl-tests: a table of sizes, each measured out of place and in place.

Bandwidths are algbw and busbw in GB of 1e9 bytes as the tools' doc/PERFORMANCE.md defines them, and times are means of
the iterations. The collective is printed since version 2.17. For older versions it is taken from the command line if
the log repeats that; otherwise the case is called `unnamed`."""

import re
from dataclasses import dataclass, field, replace

from gpubench.api import importer as gb

_RANK = re.compile(
    r"#?\s*Rank\s+\d+(?:\s+Group\s+\d+)?\s+Pid\s+\d+(?: on\s+(\S+))?\s+device\s+(\d+) \[(?:(\S+:\S+:\S+)|\S+)\] (.+)$"
)
_HEAD = re.compile(r"#?\s*size\s+count\s+type\b.*\bbusbw\b")
_VERSION = re.compile(r"\b([NR]CCL|nccl-tests) version (\S+)")
_UNITS = {"B", "elements", "us", "GB/s", "%"}
_TIMES = {"time": "time", "cputime": "cputime", "i_min": "min", "i_max": "max", "i_p99": "p99"}
_QUANTITIES = tuple((name, name, "GB/s") for name in ("busbw", "algbw")) + tuple(
    (*time, "us") for time in _TIMES.items()
)
_MEASURED = {"#wrong", "error", "i_cv%", *(column for column, _, _ in _QUANTITIES)}


@dataclass(slots=True)
class _Table(gb.Output):
    name: str = "unnamed"
    ranks: list[re.Match[str]] = field(default_factory=list)  # of the next table
    ids: tuple[str, ...] = ()  # the devices of the ranks; with several hosts they look like `node1/cuda:0`
    columns: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        if rank := _RANK.match(line):
            self.ranks.append(rank)
        elif _HEAD.match(line):
            self.columns = [name for name in line.lstrip("# ").split() if name != "timestamp"]
            self._take_ranks()
        elif re.match(r"\d+\s+\d+\s+[a-z]", line) and self.columns:
            self._add_row(re.sub(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$", "", line).split())
        elif re.match(r"#\s*\(B\)", line) and not set(units := re.findall(r"\(([^)]+)\)", line)) <= _UNITS:
            raise gb.BadOutput(f"the units {', '.join(units)}: newer than the known versions")
        else:
            self.name = name[1] if (name := re.search(r"\b(\w+?)_perf(?:_mpi)?\b", line)) else self.name
            self.versions |= {name.lower(): version for name, version in _VERSION.findall(line)}

    def _take_ranks(self) -> None:
        hosts, ids = list(dict.fromkeys(rank[1] for rank in self.ranks)), []
        for rank in self.ranks:
            host, index, pci, name = rank.groups()
            node, details = f"node{hosts.index(host)}/" * (len(hosts) > 1), (("hostname", host),) if host else ()
            ids.append(f"{node}{'rocm' if name.startswith('AMD') else 'cuda'}:{index}")
            self.devices[ids[-1]] = gb.make_device(ids[-1], name.strip(), pci=pci or "", details=details)
        self.ids, self.ranks = tuple(ids) or self.ids, []

    def _add_row(self, cells: list[str]) -> None:
        key, measured = [[name for name in self.columns if (name in _MEASURED) == kind] for kind in (False, True)]
        if len(cells) == len(self.columns) - 1 and "redop" in key:
            key.remove("redop")  # older versions omit the cell if there is no operation
        axes, half = gb.row([*key, *measured], cells), len(measured) // 2
        if not {"size", "type"} <= set(key) or measured[:half] != measured[half:]:
            raise gb.BadOutput("the columns are not those of out of place and in place")
        params: list[tuple[str, str | int]] = [("size_bytes", gb.whole_number(axes["size"])), ("type", axes["type"])]
        params += [(name, axes[name]) for name in ("redop", "root") if name in key]
        params += [("ranks", len(self.ids))] if self.ids else []
        for place, start in (("out", len(key)), ("in", len(key) + half)):
            figures = dict(zip(measured[:half], cells[start : start + half], strict=True))
            series, wrong = gb.quantities(figures, _QUANTITIES), figures.get("#wrong", "N/A")
            if [timing.name.removeprefix("cpu") for timing in series[:3]] != ["busbw", "algbw", "time"]:
                raise gb.BadOutput("time, algbw or busbw is missing")
            if int(axes["size"]) < 65536:  # a bandwidth with two decimals is too coarse: the time is the headline
                series.insert(0, series.pop(2))
            reason = f"{wrong} values are out of bounds" if wrong != "N/A" and gb.number(wrong) > 0 else ""
            failure = {"status": "failed", "cause": "wrong-answer", "reason": reason} if reason else {}
            notes = (("validation", "off"),) if wrong == "N/A" else ()
            self.add(
                self.name, (*params, ("place", place)), series, self.ids or (gb.UNSTATED.id,), notes=notes, **failure
            )


def _read(text: str) -> gb.Imported:
    table = _Table("nccl-tests", "imported: collectives as nccl-tests measured them")
    gb.read_lines(text, table.take)
    curve = gb.View(
        "curve", "Time", table.cases(), x="size_bytes", by=("place",), series="time", log_x=True, log_y=True
    )
    return table.imported(replace(curve, title="Bus bandwidth", series="busbw", log_y=False), curve)


_SUMMARY = "nccl-tests, rccl-tests (NVIDIA, AMD): collectives by size; text"
importer: gb.Importer = gb.Reader(_SUMMARY, gb.has_line(_HEAD), _read)
