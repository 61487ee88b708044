"""Collect the values that the template of a site's index shows."""

from typing import Any

from gpubench.api import report as gb


def site_page(site: gb.Site) -> dict[str, Any]:
    """Return the values of the index of a site; the runs of a device must be in order, the newest first.

    The texts of the site must be free of control characters: the template only escapes them."""
    count = sum(len(device.runs) for device in site.devices)
    models = f"{len(site.devices)} models of device" if len(site.devices) != 1 else site.devices[0].name
    spans = [(device.runs[-1].run.date, device.runs[0].run.date) for device in site.devices]
    leads = [oldest if oldest == newest else f"{oldest} to {newest}" for oldest, newest in spans]
    return {
        "title": f"{_runs(count)} on {models}" if count else "No runs",
        "devices": [
            (
                device,
                f"{_runs(len(device.runs))}, {lead}",
                [(listed, dict(listed.run.figures)) for listed in device.runs],
            )
            for device, lead in zip(site.devices, leads, strict=True)
        ],
        "refused": site.refused,
    }


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
