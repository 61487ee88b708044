"""Print a software bill of materials: the packages of an environment that gpubench needs, as CycloneDX 1.5 JSON.

bash ci/sbom.sh [EXTRA…] >sbom.json python ci/_sbom.py [EXTRA…] >sbom.json It reads the metadata of the packages that
are installed beside this Python and uses no network. The same packages give the same bytes."""

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
    """Return a distribution's name in the form that package indexes compare (PEP 503): `Foo_Bar` becomes `foo-bar`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(name: str, extras: Iterable[str]) -> set[tuple[str, frozenset[str]]]:
    """Return the requirements of an installed distribution with `extras`: pairs of a canonical name and its extras.

    A requirement is included if its condition names no extra or one of `extras`."""
    wanted_extras = set(extras)
    requirements = set()
    for line in metadata.requires(name) or []:
        requirement, _, marker = line.partition(";")
        condition_extras = set(_EXTRA.findall(marker))
        match = _NAME.match(requirement.strip())
        if match and (not condition_extras or condition_extras & wanted_extras):
            required_extras = frozenset(extra.strip() for extra in (match[2] or "").split(",") if extra.strip())
            requirements.add((canonical(match[1]), required_extras))
    return requirements


def closure(root: str, extras: Iterable[str]) -> dict[str, set[str]]:
    """Return the installed distributions that `root` with `extras` needs, also indirectly, and `root` itself.

    A canonical name maps to the names of its installed direct requirements."""
    edges: dict[str, set[str]] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    unvisited = [(canonical(root), frozenset(extras))]
    while unvisited:
        item = unvisited.pop()
        if item in visited:
            continue
        visited.add(item)
        name, chosen = item
        installed = {requirement for requirement in required(name, chosen) if is_installed(requirement[0])}
        edges.setdefault(name, set()).update(requirement for requirement, _ in installed if requirement != name)
        unvisited += installed
    return edges


def is_installed(name: str) -> bool:
    """Return True if the distribution `name` is installed beside this Python."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def component(name: str, kind: str) -> dict[str, Any]:
    """Return an installed package as a component of CycloneDX: its name, version, URL, and licence if it names one.

    `kind` is `application` or `library`."""
    package = cast(Message, metadata.metadata(name))
    version = metadata.version(name)
    entry: dict[str, Any] = {
        "type": kind,
        "bom-ref": purl(name),
        "name": canonical(package["Name"] or name),
        "version": version,
        "purl": purl(name),
    }
    classifiers = [text.rpartition(" :: ")[2] for text in package.get_all("Classifier", ()) if text[:7] == "License"]
    if expression := package["License-Expression"]:
        entry["licenses"] = [{"expression": expression}]
    elif license_name := ", ".join(classifiers) or (package["License"] or "").strip().partition("\n")[0]:
        entry["licenses"] = [{"license": {"name": license_name}}]
    return entry


def purl(name: str) -> str:
    """Return the package URL of an installed distribution: `pkg:pypi/numpy@2.1.0`."""
    return f"pkg:pypi/{canonical(name)}@{metadata.version(name)}"


def document(extras: Iterable[str]) -> dict[str, Any]:
    """Return the bill of materials of gpubench with `extras` as a CycloneDX document, ready for `json.dumps`.

    Raises PackageNotFoundError if gpubench is not installed."""
    edges = closure(DISTRIBUTION, extras)
    others = sorted(name for name in edges if name != DISTRIBUTION)
    bill: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(DISTRIBUTION, "application")},
        "components": [component(name, "library") for name in others],
        "dependencies": [
            {"ref": purl(name), "dependsOn": sorted(map(purl, edges[name]))} for name in (DISTRIBUTION, *others)
        ],
    }
    # The serial number is derived from the content, so that the same packages give the same document.
    content = json.dumps(bill, sort_keys=True)
    return {**bill, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"}


def main() -> None:
    """Print the bill of materials for the extras in `sys.argv`; exit with a message if gpubench is not installed."""
    if not is_installed(DISTRIBUTION):
        sys.exit(f"{DISTRIBUTION} is not installed beside {sys.executable}: use the Python of its environment")
    sys.stdout.write(json.dumps(document(sys.argv[1:]), indent=2, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
