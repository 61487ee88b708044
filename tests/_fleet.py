"""Fleets on one machine for tests: nodes are threads, whose program copies a prepared run file."""

import contextlib
import dataclasses
import sys
import threading
import time

import _files as files
import _make as make

from gpubench import __version__, model
from gpubench.base.errors import FileError
from gpubench.measuring.channel import encoded
from gpubench.tools.fleet import board as boards
from gpubench.tools.fleet import launchers
from gpubench.tools.fleet.board import NodeOrder, NodeReport
from gpubench.tools.fleet.session import FleetRequest, FleetSession, Patience

# A stand-in for gpubench. Its arguments are the file that it copies, the exit status, and then those of gpubench.
COPY = """
import shutil, sys, time
source, status, seconds = sys.argv[1:4]
out = next(word for word in sys.argv if word.startswith("--out=")).removeprefix("--out=")
print("bandwidth: 1 ok in 1 s", file=sys.stderr, flush=True)
time.sleep(float(seconds))
shutil.copyfile(source, out)
sys.exit(int(status))
"""
ORDER = NodeOrder(("bandwidth",), replicates=1, time_limit_s=20.0)
PATIENCE = Patience(gather_s=2.0, report_s=0.6)


def program(source, status=0, seconds=0.0):
    """Return the command of a program that copies `source` instead of measuring."""
    return (sys.executable, "-S", "-P", "-c", COPY, str(source), str(status), str(seconds))


def run_file(path, *devices, started="2026-01-02T03:04:05+00:00", end=True, **settings):
    """Write the run file of a node that was ordered ORDER, on the host unless `devices` are given."""
    devices = devices or (make.device("host", "processor"),)
    asked = {"suites": ("bandwidth",), "devices": tuple(device.id for device in devices), "tier": "quick", **settings}
    manifest = make.manifest(facts=make.facts(*devices), settings=model.Settings(**asked), started=started)
    results = [make.result(make.timing(1.0, 1.01, 0.99), devices=(device.id,)) for device in devices]
    return files.write(path, *results, manifest=manifest, end=end)


@dataclasses.dataclass
class ThreadLaunch:
    """Nodes that run as threads; `end_reasons` are the reasons of the ranks whose end the launcher knows."""

    board: boards.FolderBoard
    world: int
    launcher: str = "slurm"
    hosts: tuple[str, ...] = ()
    may_queue: bool = False
    end_reasons: dict[int, str] = dataclasses.field(default_factory=dict)

    def poll(self):
        """Do nothing: threads need no attention."""

    def reason_of_end(self, rank):
        return self.end_reasons.get(rank, "")


class ThreadFleet:
    def __init__(self, folder, world):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.launch = ThreadLaunch(boards.new_board(folder), world)
        self.threads = []
        self.views = []  # each state that was reported, with its time

    def node(self, rank, source, status=0, seconds=0.0, host="gpu"):
        """Start a real member in a thread."""

        def serve():
            with contextlib.suppress(FileError):
                launchers.serve(self.launch.board, rank, self.launch.world, program(source, status, seconds), {}, host)

        self.threads.append(threading.Thread(target=serve))
        self.threads[-1].start()

    def says(self, rank, **fields):
        """Put one report on the board, as a node would that does nothing after it."""
        plain = NodeReport(
            beat=1, version=__version__, world=self.launch.world, host=f"gpu{rank}", machine=f"machine{rank}"
        )
        self.launch.board.put(boards.report_key(rank), encoded(dataclasses.replace(plain, **fields)))

    def watch(self, views):
        """Note each change of a node's outcome with its time."""
        for view in views:
            if not self.views or (view.name, view.outcome) not in [seen[:2] for seen in self.views]:
                self.views.append((view.name, view.outcome, time.monotonic()))

    def session(self, order=ORDER, patience=PATIENCE, **fields):
        return FleetSession(self.launch, FleetRequest(order, self.folder, patience=patience, **fields), self.watch)

    def measure(self, *given, **named):
        """Measure once and wait for the threads; return the fleet's nodes by name."""
        with self.session(*given, **named) as session:
            fleet = session.measure()
        self.launch.board.remove()
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        return {node.name: node for node in fleet.nodes}
