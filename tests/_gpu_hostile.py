"""Pass small buffers and hostile streams to a GPU's codecs, in a process that may die of them.

python tests/_gpu_hostile.py COUNT CODEC…   # what became of them as JSON
"""

import itertools
import json
import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from _hostile import KINDS, MOST, buffers, mutated
from _modules import bench_on, opened, suite_module

from gpubench import plugins

BATCH = 100  # chunks in one batch: the death of a worker costs its batch
WORKERS = 4
GUARD = 0xA5
SILENCE_S = 30  # a worker that is silent for longer counts as hanging


def device_module():
    return suite_module("compression", "_codecs")


def compressed(bench, codec, chunks):
    module, xp, count = device_module(), bench.xp, len(chunks)
    target = module.DeviceChunks.room(xp, count, codec.max_output_bytes(MOST))
    scratch = xp.empty(max(codec.temp_bytes(count, MOST).values()), xp.uint8)
    batch = module.Batch(codec, module.DeviceChunks.uploaded(xp, chunks), target, scratch, MOST)
    batch.poison()
    batch()
    return target.downloaded(bench, count), bench.device.to_host(batch.statuses)


def restored(bench, codec, streams, sizes):
    """Decompress each stream into room of `sizes` bytes; return statuses, lengths, bytes and overruns."""
    module, xp = device_module(), bench.xp
    count, stride = len(streams), MOST + 512
    memory = xp.asarray(np.full(count * stride, GUARD, np.uint8))
    target = module.DeviceChunks.side_by_side(xp, memory, stride, sizes)
    scratch = xp.empty(max(codec.temp_bytes(count, max(MOST, *map(len, streams))).values()), xp.uint8)
    batch = module.Batch(codec, module.DeviceChunks.uploaded(xp, streams), target, scratch)
    batch.poison()
    batch()
    rows = bench.device.to_host(memory).reshape(count, stride)
    overrun = sum(bool((row[size:] != GUARD).any()) for row, size in zip(rows, sizes, strict=True))
    return bench.device.to_host(batch.statuses), bench.device.to_host(batch.written), rows, overrun


def round_trips(bench, codec, chunks):
    """Return how many chunks came back unchanged, and the statuses of the others."""
    streams, made = compressed(bench, codec, chunks)
    statuses, lengths, rows, _ = restored(bench, codec, streams, list(map(len, chunks)))
    right = [row[: len(chunk)].tobytes() == chunk for row, chunk in zip(rows, chunks, strict=True)]
    good = (made == 0) & (statuses == 0) & (lengths == np.array(list(map(len, chunks)))) & np.array(right)
    bad = [(len(chunks[i]), int(made[i]), int(statuses[i]), int(lengths[i])) for i in np.flatnonzero(~good)[:5]]
    return {"came back": int(good.sum()), "of": len(chunks), "first that did not": bad}


def attack(bench, codec, chunks, rng, way=None):
    """Return how many damaged streams were refused, had a wrong length, had wrong bytes, or were unharmed."""
    streams, _ = compressed(bench, codec, chunks)
    hostile = [mutated(rng, stream, streams, way) for stream in streams]
    statuses, lengths, rows, overrun = restored(bench, codec, hostile, list(map(len, chunks)))
    outcomes = {"refused": 0, "wrong length": 0, "other bytes": 0, "unharmed": 0}
    for status, length, row, chunk in zip(statuses, lengths, rows, chunks, strict=True):
        same = row[: len(chunk)].tobytes() == chunk
        kind = (
            "refused" if status else "wrong length" if length != len(chunk) else "unharmed" if same else "other bytes"
        )
        outcomes[kind] += 1
    return {**outcomes, "overrun": overrun}


def say(line):
    """Print a line, which `pytest -rA` shows."""
    sys.stdout.write(line + "\n")


def batches(count, names):
    """Return the work: codec, kind of damage, and the number of the batch, which is its seed."""
    ways = tuple(KINDS)
    return [(name, ways[index % len(ways)], index) for name in names for index in range(-(-count // BATCH))]


def work(jobs, pipe):
    """Run one batch after another in a process of its own, until all are done or one ends the process."""
    bench = bench_on(opened("cupy"), plugins.load("suites", "compression"), "x")
    for name, way, index in jobs:
        rng = np.random.default_rng([11, index])
        chunks = [chunk for chunk in buffers(rng, 2 * BATCH) if chunk][:BATCH]
        pipe.send(attack(bench, device_module().DeviceCodec(bench, name), chunks, rng, way))


def followed(jobs):
    """Return the outcomes of these batches; if a worker dies or hangs, its batch says so and a new worker continues."""
    context, outcomes = multiprocessing.get_context("fork"), []
    while len(outcomes) < len(jobs):
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(jobs[len(outcomes) :], there))
        worker.start()
        there.close()
        try:
            while len(outcomes) < len(jobs):
                if not here.poll(SILENCE_S):
                    outcomes.append({"hung": BATCH})
                    break
                outcomes.append(here.recv())
        except EOFError:
            outcomes.append({"died": BATCH})
        worker.kill()
        worker.join()
    return outcomes


def survey(count, names):
    """Return the outcomes of `count` mutations per codec, by codec and kind of damage."""
    jobs = batches(count, names)
    shares = [jobs[first::WORKERS] for first in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes = [outcome for share in pool.map(followed, shares) for outcome in share]
    by_way = {}
    for (name, way, _), outcome in zip(itertools.chain(*shares), outcomes, strict=True):
        totals = by_way.setdefault(name, {}).setdefault(way, {})
        for key, number in outcome.items():
            totals[key] = totals.get(key, 0) + number
    return by_way


if __name__ == "__main__":
    plugins.load("suites", "compression"), plugins.load("backends", "cupy")  # imported once, before any fork
    sys.stdout.write(json.dumps(survey(int(sys.argv[1]), sys.argv[2:])))
