"""Small buffers and hostile streams through a GPU's codecs, in a process that may die of them.

python tests/_gpu_hostile.py FIRST COUNT CODEC…   # a JSON line a batch, from batch FIRST on
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from _hostile import MOST, buffers, mutated

from gpubench import plugins

BATCH = 1000
GUARD = 0xA5
SILENCE_S = 60  # a worker that is not done by then hangs


def device_module():
    return sys.modules[plugins.load("suites", "compression").module.replace("compression", "_codecs_device")]


def compressed(bench, codec, chunks):
    """Every chunk as one batch made it, in host memory, and the statuses."""
    chunk_type = device_module().DeviceChunks
    xp, source = bench.xp, chunk_type.uploaded(bench.xp, chunks)
    target = chunk_type.room(xp, len(chunks), codec.max_compressed_bytes(MOST))
    scratch = xp.empty(codec.temp_bytes(len(chunks), MOST), xp.uint8)
    statuses = xp.asarray(np.full(len(chunks), -1, np.int32))
    codec.compress(source, target, MOST, scratch, statuses, device_module().current_stream(xp))
    rows = bench.device.to_host(target.memory).reshape(len(chunks), -1)
    sizes = bench.device.to_host(target.sizes).tolist()
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)], bench.device.to_host(statuses)


def restored(bench, codec, streams, sizes):
    """What each stream becomes in room of `sizes` bytes: statuses, lengths, bytes, and how many rows were overrun."""
    chunk_type, xp = device_module().DeviceChunks, bench.xp
    count, stride = len(streams), MOST + 512
    source = chunk_type.uploaded(xp, streams)
    memory = xp.asarray(np.full(count * stride, GUARD, np.uint8))
    places = device_module().address(memory) + np.arange(count, dtype=np.uint64) * np.uint64(stride)
    target = chunk_type(memory, stride, xp.asarray(np.array(sizes, np.uint64)), xp.asarray(places))
    written = xp.asarray(np.zeros(count, np.uint64))
    statuses = xp.asarray(np.full(count, -1, np.int32))
    scratch = xp.empty(codec.temp_bytes(count, max(MOST, *map(len, streams))), xp.uint8)
    codec.decompress(source, target, written, scratch, statuses, device_module().current_stream(xp))
    rows = bench.device.to_host(memory).reshape(count, stride)
    overrun = sum(bool((row[size:] != GUARD).any()) for row, size in zip(rows, sizes, strict=True))
    return bench.device.to_host(statuses), bench.device.to_host(written), rows, overrun


def round_trips(bench, codec, chunks):
    """How many chunks came back; of the others what was told of them."""
    streams, made = compressed(bench, codec, chunks)
    told, lengths, rows, _ = restored(bench, codec, streams, list(map(len, chunks)))
    right = [row[: len(chunk)].tobytes() == chunk for row, chunk in zip(rows, chunks, strict=True)]
    good = (made == 0) & (told == 0) & (lengths == np.array(list(map(len, chunks)))) & np.array(right)
    bad = [(len(chunks[i]), int(made[i]), int(told[i]), int(lengths[i])) for i in np.flatnonzero(~good)[:5]]
    return {"came back": int(good.sum()), "of": len(chunks), "first that did not": bad}


def attack(bench, codec, chunks, rng):
    """How many mutated streams are refused, of a wrong length, of other bytes (a comparison sees it), unharmed."""
    streams, _ = compressed(bench, codec, chunks)
    hostile = [mutated(rng, stream, streams) for stream in streams]
    told, lengths, rows, overrun = restored(bench, codec, hostile, list(map(len, chunks)))
    found = {"refused": 0, "wrong length": 0, "other bytes": 0, "unharmed": 0}
    for status, length, row, chunk in zip(told, lengths, rows, chunks, strict=True):
        same = row[: len(chunk)].tobytes() == chunk
        kind = (
            "refused" if status else "wrong length" if length != len(chunk) else "unharmed" if same else "other bytes"
        )
        found[kind] += 1
    return {**found, "overrun": overrun}


def batches(count, names):
    """The work in order: codec and number of the batch."""
    return [(name, index) for name in names for index in range(-(-count // BATCH))]


def say(line):
    """A line that is out before anything can happen to this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(first, count, *names):
    from gpubench.model import Case, Facts
    from gpubench.suite import Bench, Target

    backend = plugins.load("backends", "cupy")
    opened = backend.open(backend.devices()[0])
    suite = plugins.load("suites", "compression")
    bench = Bench(opened, Case("compression", "x"), Target(Facts((opened.device,)), opened.device), suite.package)
    for name, index in batches(int(count), names)[int(first) :]:
        rng = np.random.default_rng([11, index])
        chunks = [chunk for chunk in buffers(rng, BATCH + BATCH // 10) if chunk][: min(BATCH, int(count))]
        codec = device_module().open_codec(bench, name)
        say(json.dumps([name, index, attack(bench, codec, chunks, rng)]))


def survey(count, names):
    """What became of `count` mutations a codec; a batch whose worker died is told so, and the next worker goes on."""
    work, outcomes, started = batches(count, names), [], time.monotonic()
    while len(outcomes) < len(work):
        command = [sys.executable, str(Path(__file__)), str(len(outcomes)), str(count), *names]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SILENCE_S, check=False)
            text, why = done.stdout, done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired as expired:
            text, why = (expired.stdout or b"").decode(), ["hang"]
        outcomes += [json.loads(line) for line in text.splitlines()]
        if len(outcomes) < len(work):
            outcomes.append([*work[len(outcomes)], {"died": BATCH, "of": why}])
    say(f"{len(work)} batches in {time.monotonic() - started:.1f} s")
    return outcomes


if __name__ == "__main__":
    main(*sys.argv[1:])
