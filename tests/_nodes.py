"""Run one node of a group in a separate process, for tests: `python _nodes.py RANK SIZE PORT OUT SCRIPT…`.

It runs cases of the suite in tests/plugin as `gpubench run` would, and writes each outcome as a line of JSON to OUT.
"""

import json
import sys
from pathlib import Path

from gpubench import plugins
from gpubench.measuring import plan as planning
from gpubench.measuring.nodes import Membership, NodeGroup, join
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Facts, Settings

SECRET = b"a secret of the launcher"


class ResultLines:
    def __init__(self, path):
        self._file = path.open("w", buffering=1)

    def result(self, result):
        """Write one line of JSON with the result and the first three values of each series."""
        series = {series.label: (series.rank, *series.values[:3]) for series in result.series}
        row = {"name": result.case.name, "status": result.status, "cause": result.cause, "reason": result.reason}
        self._file.write(json.dumps({**row, "params": dict(result.case.params), "series": series}) + "\n")

    def samples(self, samples):
        del samples

    def remark(self, remark):
        del remark


def measure(rank, size, port, out, suite, filters):
    """Join the group as one of `size` nodes, and run the matching cases of a suite in their order."""
    facts = Facts(tuple(plugins.load("backends", "host").devices()))
    plan = planning.make(facts, Settings((suite,), ("host",), "smoke", filters=filters, nodes=size))
    channels = join(Membership(rank, size, "127.0.0.1", port, SECRET), b"the same", 20.0)
    with (
        NodeGroup(rank, size, channels, 2.0) as group,
        Runner(plan, SamplingProcess((), 0.0), ResultLines(out), 60.0, group=group) as runner,
    ):
        runner.run(plan.jobs, 0.0, lambda event: None)


if __name__ == "__main__":
    rank, size, port, out, suite, *filters = sys.argv[1:]
    measure(int(rank), int(size), int(port), Path(out), suite, tuple(filters))
