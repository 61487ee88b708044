"""Record the licence and the date of each locked package in locks/packages.json: part of `bash ci/lock.sh`.

python ci/_packages.py FOLDER reads from FOLDER the locks in the form of PEP 751 (`pylock.EXTRA.toml`), which state when
each file was published, and pip's reports about them (`EXTRA.json`), which contain the metadata. A package that Linux
does not install has no licence there."""

import json
import re
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[1] / "locks" / "packages.json"


def licence(package: dict[str, Any]) -> str:
    """Return the licence in the metadata of a package: its expression, its classifiers, or its short name."""
    classifiers = [text.rpartition(" :: ")[2] for text in package.get("classifier", ()) if text[:7] == "License"]
    name = (package.get("license") or "").strip()
    return str(package.get("license_expression") or ", ".join(classifiers) or name.partition("\n")[0])


def main() -> None:
    """Write the record of all packages of all locks in the folder that `sys.argv` names."""
    licences: dict[str, str] = {}
    for path in Path(sys.argv[1]).glob("*.json"):
        for item in json.loads(path.read_text())["install"]:
            name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
            licences[name] = licence(item["metadata"])
    packages = {}
    for path in Path(sys.argv[1]).glob("pylock.*.toml"):
        for package in tomllib.loads(path.read_text())["packages"]:
            files = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
            published = max(file["upload-time"] for file in files).date().isoformat()
            key = f"{package['name']}=={package['version']}"
            packages[key] = {"published": published, "licence": licences.get(package["name"], "")}
    record = {"recorded": datetime.now(UTC).date().isoformat(), "packages": dict(sorted(packages.items()))}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
