"""Print a software bill of materials: the packages of an environment that gpubench stands on, as CycloneDX 1.5 JSON.

    bash ci/sbom.sh [EXTRA…] >sbom.json        python ci/_sbom.py [EXTRA…] >sbom.json

It reads the metadata of the packages that are installed beside this Python and uses no network. The same packages give
the same bytes. `EXTRA` are extras of gpubench, such as cuda13; without any, what a base installation needs.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable
from email.message import Message
from importlib import metadata
from typing import Any, cast

DISTRIBUTION = "gpubench-suite"
_NAME = re.compile(r"^([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def canonical(name: str) -> str:
    """Return a distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(name: str, extras: Iterable[str]) -> set[tuple[str, frozenset[str]]]:
    """Return what an installed distribution requires with these extras: canonical names, each with its extras.

    Other conditions of a requirement are not evaluated: what is required elsewhere is simply not installed here.
    """
    wanted = set(extras)
    found = set()
    for line in metadata.requires(name) or []:
        requirement, _, marker = line.partition(";")
        of_extras = set(_EXTRA.findall(marker))
        match = _NAME.match(requirement.strip())
        if match and (not of_extras or of_extras & wanted):
            named = frozenset(extra.strip() for extra in (match[2] or "").split(",") if extra.strip())
            found.add((canonical(match[1]), named))
    return found


def closure(root: str, extras: Iterable[str]) -> dict[str, set[str]]:
    """Return the installed distributions that `root` reaches, each with those that it requires itself."""
    edges: dict[str, set[str]] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonical(root), frozenset(extras))]
    while waiting:
        item = waiting.pop()
        if item in done:
            continue
        done.add(item)
        name, chosen = item
        installed = {other for other in required(name, chosen) if is_installed(other[0])}
        edges.setdefault(name, set()).update(other for other, _ in installed if other != name)
        waiting += installed
    return edges


def is_installed(name: str) -> bool:
    """Return whether a distribution is installed beside this Python."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def component(name: str, kind: str) -> dict[str, Any]:
    """Return one package as a component of CycloneDX."""
    about = cast(Message, metadata.metadata(name))
    version = metadata.version(name)
    found: dict[str, Any] = {
        "type": kind,
        "bom-ref": purl(name),
        "name": canonical(about["Name"] or name),
        "version": version,
        "purl": purl(name),
    }
    if expression := about["License-Expression"]:
        found["licenses"] = [{"expression": expression}]
    elif (words := (about["License"] or "").strip()) and "\n" not in words:
        found["licenses"] = [{"license": {"name": words}}]
    return found


def purl(name: str) -> str:
    """Return the package URL of an installed distribution."""
    return f"pkg:pypi/{canonical(name)}@{metadata.version(name)}"


def document(extras: Iterable[str]) -> dict[str, Any]:
    """Return the whole bill of materials."""
    edges = closure(DISTRIBUTION, extras)
    others = sorted(name for name in edges if name != DISTRIBUTION)
    found: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(DISTRIBUTION, "application")},
        "components": [component(name, "library") for name in others],
        "dependencies": [
            {"ref": purl(name), "dependsOn": sorted(map(purl, edges[name]))} for name in (DISTRIBUTION, *others)
        ],
    }
    # named by its content, so that the same packages give the same document
    content = json.dumps(found, sort_keys=True)
    return {**found, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"}


def main() -> None:
    """Print the bill of materials; exit status 2 where gpubench is not installed beside this Python."""
    if not is_installed(DISTRIBUTION):
        sys.exit(f"{DISTRIBUTION} is not installed beside {sys.executable}: use the Python of its environment")
    sys.stdout.write(json.dumps(document(sys.argv[1:]), indent=2, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
