"""Turns a real run file into a recording for the tests: who and where is taken out, what was measured stays.

python tests/recordings/redact.py RUN.jsonl tests/recordings/NAME.jsonl.gz
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from gpubench.model import Device, Facts, Manifest
from gpubench.store import RunWriter, read_run


def redacted_device(number: int, device: Device) -> Device:
    """A device with invented names: the same number of them, in the same order."""
    if device.backend == "host":
        return device
    return dataclasses.replace(device, uuid=f"GPU-00000000-0000-0000-0000-{number:012}", pci=f"0000:{number:02x}:00.0")


def redacted(manifest: Manifest) -> Manifest:
    """A manifest without host name, serial names and paths."""
    facts = manifest.facts
    host = tuple((name, "redacted" if name == "hostname" else value) for name, value in facts.host)
    devices = tuple(redacted_device(number, device) for number, device in enumerate(facts.devices))
    return dataclasses.replace(
        manifest, facts=Facts(devices, host, facts.versions, facts.absent), argv=("gpubench", *manifest.argv[1:2])
    )


def main(source: str, target: str) -> None:
    """Rewrite one file."""
    run = read_run(source)
    Path(target).unlink(missing_ok=True)
    with RunWriter.create(target, redacted(run.manifest)) as writer:
        for result in run.results:
            writer.result(result)
        for samples in run.samples:
            writer.samples(samples)
        writer.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
