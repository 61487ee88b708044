"""Reduce a run to the key figures of one card, as a small file without names that a pull request can add."""

import math
import re
from typing import Any

from gpubench.analysis.key_figures import KeyValue, key_values
from gpubench.analysis.summary import Summary
from gpubench.knowledge.cards import SCHEMA
from gpubench.knowledge.key_figures import BUILT_IN_SUITES
from gpubench.model import Device

_DETAILS = ("power.limit_w", "ecc", "mig", "pcie.generation", "pcie.width", "clock.sm_most_hz", "clock.application_hz")
_VERSIONS = ("nvidia.driver", "cuda.driver", "cuda.runtime", "rocm", "nvidia-cublas")
_PLAIN = re.compile(r"[\w .+-]{1,40}")


def contributions(summary: Summary, run_sha256: str) -> list[dict[str, Any]]:
    """Return for each GPU of a run its model, its settings and versions, and its key figures; nothing else of the run.

    `run_sha256` is the hash of the run file, by which a figure is found again."""
    manifest = summary.run.manifest
    runs = []
    for device in manifest.facts.devices:
        figures = [_figure(summary, value) for value in key_values(summary) if _is_own(value, device)]
        if figures and device.backend not in ("host", "imported"):
            runs.append(
                {
                    "schema": SCHEMA,
                    "run_sha256": run_sha256,
                    "gpubench": manifest.gpubench,
                    "model": device.name,
                    "arch": device.arch,
                    "memory_bytes": device.memory_bytes,
                    "month": manifest.started[:7],
                    "tier": manifest.settings.tier,
                    "settings": _plain(dict(device.details), _DETAILS),
                    "versions": _plain(dict(manifest.facts.versions), _VERSIONS),
                    "figures": figures,
                }
            )
    return runs


def _is_own(value: KeyValue, device: Device) -> bool:
    return value.devices == (device.id,) and not value.series and value.case_id.partition("/")[0] in BUILT_IN_SUITES


def _figure(summary: Summary, value: KeyValue) -> dict[str, Any]:
    """Return a key figure as plain values; `deviation` is relative and between processes, None with one process."""
    spread = next(s for s in summary.spreads() if (s.case.id, s.devices) == (value.case_id, value.devices))
    return {
        "case": value.case_id,
        "version": spread.case.version,
        "value": value.figure.interval.centre,
        "unit": value.figure.unit,
        "processes": len(spread.medians),
        "deviation": spread.between if math.isfinite(spread.between) else None,
        "labels": sorted(spread.labels),
    }


def _plain(values: dict[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the values with these names that are short plain texts."""
    return {name: values[name] for name in names if name in values and _PLAIN.fullmatch(values[name])}
