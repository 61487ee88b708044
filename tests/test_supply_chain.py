"""Installed packages and their origin: locks with hashes, a bill of materials, a wheel of one package, no network."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import date, timedelta
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ["cuda12", "cuda13", "dev", "host", "rocm7"]
LOCKS = ["base", *EXTRAS, "tools"]  # `tools` is what ci/lock.sh itself runs
SBOM = [sys.executable, ROOT / "ci" / "_sbom.py"]


def pinned(extra):
    text = (ROOT / "locks" / f"{extra}.lock").read_text().replace("\\\n", " ")
    packages = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, version = re.match(r"([\w.-]+)==([\w.+!-]+)", line).groups()
            packages[canonicalize_name(name), version] = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line)
    return packages


def required(extra):
    """Return the requirements of an extra in pyproject, with those of the extras that it names; `base` is no extra."""
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, ())]
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:
            for inner in requirement.extras:
                yield from required(inner)
        else:
            yield requirement


@pytest.mark.parametrize("extra", LOCKS)
def test_a_lock_pins_every_package_by_its_hashes(extra):
    assert [package for package, hashes in pinned(extra).items() if not hashes] == []
    assert sorted(path.stem for path in (ROOT / "locks").glob("*.lock")) == LOCKS


@pytest.mark.parametrize("extra", ["base", *EXTRAS])
def test_a_lock_holds_what_pyproject_asks_for(extra):
    """Where this fails, pyproject.toml has changed since the locks were written: bash ci/lock.sh."""
    versions = {}
    for name, version in pinned(extra):
        versions.setdefault(name, []).append(version)
    unmet = [
        str(requirement)
        for requirement in required(extra)
        if not any(
            requirement.specifier.contains(version) for version in versions.get(canonicalize_name(requirement.name), [])
        )
    ]
    assert unmet == []


def test_a_lock_names_no_index_and_no_place_of_a_machine():
    texts = {extra: (ROOT / "locks" / f"{extra}.lock").read_text() for extra in LOCKS}
    assert [
        extra for extra, text in texts.items() if re.search(r"https?:|file:|--index|--find-links|/\w+/", text)
    ] == []


OLD = {  # no release for two years, and the reason to use it nevertheless
    "colorama": "installed on Windows only, where gpubench does not run",
    "mdurl": "markdown-it-py, of rich, needs it; small, complete, pure Python",
    "shellingham": "typer needs it, to find the shell that is to complete; small, pure Python",
    "sortedcontainers": "hypothesis needs it; only tests use it",
}
NO_LICENCE = {  # in the metadata that `bash ci/lock.sh` reads
    "colorama": "installed on Windows only",
    "pywin32": "installed on Windows only",
    "cuda-toolkit": "contains no files: it selects NVIDIA's packages, which have their licences",
}


def test_each_locked_package_has_a_licence_and_a_release_of_the_last_two_years_or_a_reason():
    """Where this fails, write why a package is used although nobody maintains it, or replace the package."""
    record = json.loads((ROOT / "locks" / "packages.json").read_text())
    packages = record["packages"]
    assert set(packages) == {f"{name}=={version}" for lock in LOCKS for name, version in pinned(lock)}
    recorded = date.fromisoformat(record["recorded"])
    ages = {key: recorded - date.fromisoformat(package["published"]) for key, package in packages.items()}
    assert {key.partition("==")[0] for key, age in ages.items() if age > timedelta(days=730)} == set(OLD)
    assert {key.partition("==")[0] for key, package in packages.items() if not package["licence"]} == set(NO_LICENCE)


def test_the_scripts_install_by_hash_alone():
    """SECURITY.md names the two that do not: of compilers, and of GitLab's users."""
    scripts = [*(ROOT / "ci").glob("*.sh"), *(ROOT / "ci").glob("*.y*ml"), ROOT / "templates" / "gate.yml"]
    texts = {path.name: path.read_text() for path in scripts}
    loose = {
        name
        for name, text in texts.items()
        for line in re.findall(r"(?m)^.*\bpip(?:\"|) (?:--quiet )?install(?:.*\\\n)*.*$", text)
        if not re.search(r'--require-hashes|--no-deps|"\$@"', line)
    }
    assert loose == {"_setup.sh", "compilers.sh", "gate.yml"}


def test_the_action_installs_by_hash_alone():
    text = (ROOT / "action.yml").read_text()
    installs = [line.strip() for line in text.splitlines() if re.match(r"\s*pip ", line)]
    assert installs == [
        'pip --require-hashes -r "$GITHUB_ACTION_PATH/locks/$EXTRA.lock"',
        'pip --no-deps --no-build-isolation "$GITHUB_ACTION_PATH"',
    ]


COMMENTS = [
    {"id": 1, "body": "<!-- gpubench gate --> I am the gate", "user": {"login": "somebody", "type": "User"}},
    {"id": 2, "body": "<!-- gpubench gate --> so am I", "user": {"login": "github-actions[bot]", "type": "User"}},
    {"id": 3, "body": "a bot's other comment", "user": {"login": "github-actions[bot]", "type": "Bot"}},
    {"id": 4, "body": None, "user": None},
]
OURS = {"id": 5, "body": "<!-- gpubench gate -->\nfaster", "user": {"login": "github-actions[bot]", "type": "Bot"}}


@pytest.mark.skipif(not shutil.which("node"), reason="the Action's script is JavaScript: needs node")
@pytest.mark.parametrize(("comments", "expected"), [(COMMENTS, ["create"]), ([*COMMENTS, OURS], ["update", 5])])
def test_the_action_changes_only_a_comment_that_it_has_written_itself(tmp_path, comments, expected):
    """The script of action.yml runs against a GitHub that only records the requests."""
    text = (ROOT / "action.yml").read_text()
    script = text.split("script: |\n")[1].split("\n    - name:")[0]
    (tmp_path / "gpubench-runs").mkdir()
    (tmp_path / "gpubench-runs" / "comment.md").write_text("<!-- gpubench gate -->\nnew")
    program = f"""
const context = {{ repo: {{}}, issue: {{ number: 7 }} }};
const issues = {{
  listComments: null,
  updateComment: async (asked) => console.log(JSON.stringify(['update', asked.comment_id])),
  createComment: async (asked) => console.log(JSON.stringify(['create'])),
}};
const github = {{ rest: {{ issues }}, paginate: async () => {json.dumps(comments)} }};
(async () => {{ {script} }})();
"""
    done = subprocess.run(["node", "-e", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stderr, json.loads(done.stdout)) == ("", expected)


# --- bill of materials


def test_the_bill_of_materials_names_each_package_once_and_what_it_needs():
    host, again, base = (
        subprocess.run([*SBOM, *extra], capture_output=True, text=True, check=True).stdout
        for extra in (["host"], ["host"], [])
    )
    assert host == again
    assert "numba" not in {component["name"] for component in json.loads(base)["components"]}
    bill = json.loads(host)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert all(component["licenses"] for component in bill["components"])
    names = [component["name"] for component in bill["components"]]
    assert names == sorted(set(names))
    assert {"numpy", "numba", "llvmlite", "pydantic-core", "nvidia-ml-py"} <= set(names)
    assert "pytest" not in names
    assert all(component["purl"] == component["bom-ref"] for component in bill["components"])
    purls = {component["purl"] for component in (*bill["components"], bill["metadata"]["component"])}
    assert {edge["ref"] for edge in bill["dependencies"]} == purls
    assert {target for edge in bill["dependencies"] for target in edge["dependsOn"]} <= purls


# --- the network

GUARD = """
import os, sys

LOOKED_UP = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
REACHED = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg")

def guard(event, arguments):
    if event in LOOKED_UP:
        address = arguments[0]
    elif event in REACHED and isinstance(arguments[1], tuple):
        address = arguments[1][0]
    else:
        return
    if address not in ("127.0.0.1", "::1", "localhost"):
        file = os.open(os.environ["GUARD_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{event} {address} {sys.argv}\\n".encode())
        os._exit(99)

sys.addaudithook(guard)
"""


def guarded(tmp_path, *arguments):
    """Run gpubench under a guard that ends each process that opens a connection to another machine."""
    (tmp_path / "sitecustomize.py").write_text(GUARD)
    log = tmp_path / "guard.log"
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "GUARD_LOG": str(log)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, log.read_text() if log.exists() else ""


@pytest.mark.slow
def test_a_run_and_its_report_open_no_connection(tmp_path):
    done, log = guarded(tmp_path, "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 1)")
    assert (done.returncode, "192.0.2.1" in log) == (99, True), "the guard detects a connection"
    (tmp_path / "guard.log").unlink()
    run = ("run", "all", "--tier", "smoke", "--device", "host", "--out", "run.jsonl")
    for arguments in (
        ("list",),
        run,
        ("report", "run.jsonl", "-o", "page.html"),
        ("doctor",),
        ("monitor", "--prometheus"),
    ):
        done, log = guarded(tmp_path, "-m", "gpubench", *arguments)
        assert (done.returncode, log) == (0, ""), done.stderr
