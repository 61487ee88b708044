"""Time a fleet of 1000 nodes × 8 GPUs × 30 cases: digests and judgement. Prints times, processor times and sizes.

bash ci/study.sh fleet_of_thousand [NODES]
"""

import itertools
import math
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from gpubench.judging.fleet_rule import judge_fleet
from gpubench.model import Run, Settings, store
from gpubench.model.fleet import FLEET_FILE, Fleet, FleetNode, encode_fleet
from gpubench.tools.fleet.judging import read

GPUS, CASES, REPLICATES, SAMPLES = 8, 30, 3, 30
RECORDING = Path(__file__).parents[1] / "recordings/h200-quick.jsonl.gz"


def node_run(template, name, slow, draw):
    """Return a run of every GPU of a node: the first cases of a recording, moved by chance and on a slow GPU by 5 %."""
    (device, *_) = (candidate for candidate in template.manifest.facts.devices if candidate.backend != "host")
    chosen = list(
        itertools.islice((r for r in template.results if r.status == "ok" and r.devices == (device.id,)), CASES)
    )
    devices = tuple(replace(device, id=f"cuda:{gpu}", uuid=f"GPU-{name}-{gpu}", peers=()) for gpu in range(GPUS))
    results = []
    for gpu, replicate, result in itertools.product(range(GPUS), range(REPLICATES), chosen):
        factor = math.exp(draw.gauss(0.0, 0.002)) * (1.05 if (slow and gpu == 3) else 1.0)
        first = result.series[0]
        moved = (replace(first, values=tuple(value * factor for value in first.values[:SAMPLES])),)
        results.append(replace(result, devices=(f"cuda:{gpu}",), replicate=replicate, series=moved))
    facts = replace(template.manifest.facts, devices=devices)
    settings = Settings(("all",), tuple(candidate.id for candidate in devices), "quick", replicates=REPLICATES)
    manifest = replace(template.manifest, facts=facts, settings=settings, counters=())
    return Run(manifest, tuple(results))


def processor_seconds():
    """Return the processor time of this process and of its ended children, in seconds."""
    return sum(os.times()[:4])


def main():
    """Write a fleet with one slow node, judge it, and print the time and the memory of each step."""
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    draw, template = random.Random(1), store.read_run(RECORDING)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        entries = []
        size = 0
        for index in range(nodes):
            name = f"node{index:04}"
            path = folder / f"{name}.jsonl.gz"
            path.write_bytes(store.encode_run(node_run(template, name, index == 7, draw), packed=True))
            size += path.stat().st_size
            entries.append(FleetNode(name, "answered", 60.0, path.name))
        (folder / FLEET_FILE).write_bytes(encode_fleet(Fleet(tuple(entries), "slurm")))
        print(f"{nodes} nodes: {size / 1e6:.0f} MB of run files")  # noqa: T201
        started, used = time.monotonic(), processor_seconds()
        fleet = read(folder)
        print(f"read into digests: {fleet.seconds:.1f} s, {processor_seconds() - used:.1f} s of processors")  # noqa: T201
        judged = judge_fleet(fleet.fleet, fleet.digests)
        print(f"slow: {[suspect.place.text for suspect in judged.suspects]}")  # noqa: T201
        seconds = time.monotonic() - started
        print(f"read and judged: {seconds:.1f} s, {processor_seconds() - used:.1f} s of processors")  # noqa: T201


if __name__ == "__main__":
    main()
