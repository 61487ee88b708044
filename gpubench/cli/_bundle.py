"""`gpubench doctor --bundle`: write an archive that a user can attach to an issue."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gpubench.cli import _options as options
from gpubench.cli import _print
from gpubench.cli import _sharing as sharing

if TYPE_CHECKING:
    from gpubench.model import Run

_README = """\
Files that `gpubench doctor --bundle` collected. Names of host, user and device and serial numbers are removed.

facts.json     devices, versions, what is missing and why
sys/           the GPU's files, as the driver gave them: addresses on the PCI bus are as they are
run.jsonl.gz   the smallest run of every suite: `gpubench show run.jsonl.gz`
"""


def write(target: Path, device: list[str] | None) -> None:
    """Measure the smallest run, and write it and the driver's files about GPUs, anonymised, to the archive `target`.

    `device` are the ids to measure, as for `run --device`; None measures the first GPU, or the host. Raises UsageError
    if `target` exists or cannot be written, or for an unknown device, and DeviceError if a device is lost meanwhile."""
    import json

    from gpubench.model import store
    from gpubench.tools import bundle

    sharing.check_target(target, force=False)
    run = sharing.shareable(_measure_smoke(device))
    entries = {
        "README": _README.encode(),
        "facts.json": json.dumps(asdict(run.manifest.facts), indent=1, ensure_ascii=False).encode(),
        "run.jsonl.gz": store.encode_run(run, packed=True),
        **bundle.device_files(),
    }
    sharing.write(target, bundle.archive(entries))
    message = f"{target}: {len(entries)} files; list them with tar tzf before you share it"
    _print.err().print(_print.plain(message), soft_wrap=True)


def _measure_smoke(device: list[str] | None) -> Run:
    """Measure all suites in the smoke tier and return the run; its run file is temporary."""
    from gpubench.cli._progress import run_display
    from gpubench.measuring import inventory, plan
    from gpubench.tools import session

    facts = inventory.facts()
    settings = options.settings(facts, ["all"], device, False, options.TierName.SMOKE, None, None)
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder, run_display() as watch:
        return session.measure(plan.make(facts, settings), Path(folder) / "run.jsonl", sys.argv, watch)
