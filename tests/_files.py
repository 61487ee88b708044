"""Write run files to the disk for tests, and read their lines in any packing."""

import gzip
import json

import _make as make

from gpubench import model
from gpubench.model import disk, store


def write(path, *records, end=True, manifest=None):
    with store.RunWriter.create(path, manifest or make.manifest()) as writer:
        for item in records:
            writer.samples(item) if isinstance(item, model.Samples) else writer.result(item)
        if end:
            writer.end()
    return path


def content(path):
    """Return the bytes of a run file's lines, unpacked; of a truncated gzip, the complete lines."""
    with disk.open_bytes(path) as file:
        return file.read()


def lines(path):
    """Return the records of a run file, as JSON."""
    return [json.loads(line) for line in content(path).splitlines()]


def replace(path, data):
    """Put other bytes in a run file's place, packed as its name says."""
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def edit(path, number, old, new):
    """Change the text of one line (from 1)."""
    lines = content(path).splitlines(keepends=True)
    assert old.encode() in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old.encode(), new.encode(), 1)
    return replace(path, b"".join(lines))
