"""The shape of the code: layers, rooms, packaging, sizes and broad excepts are what the documents say."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

import gpubench

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]

# A module imports only those before it; ARCHITECTURE.md shows the same list.
LAYERS = (
    "errors",
    "units",
    "marks",
    "model",
    "packed",
    "walk",
    "clean",
    "redact",
    "identity",
    "fingerprint",
    "stats",
    "changepoints",
    "data",
    "counters",
    "peaks",
    "energy",
    "bound",
    "phases",
    "summary",
    "joined",
    "trend",
    "live",
    "endpoint",
    "views.curves",
    "views.levels",
    "views.transfer",
    "views.breakeven",
    "views.derived",
    "views.payoffs",
    "views.tables",
    "views.phase_tables",
    "views.links",
    "frame",
    "patterns",
    "judging.noise",
    "judging.evidence",
    "judging.effect",
    "judging.objections",
    "judging.judge",
    "judging.comparison",
    "judging.policy",
    "judging.rounds",
    "protocols",
    "suite",
    "native",
    "rocm",
    "bundle",
    "api",
    "plugins",
    "boundary",
    "process",
    "stopping",
    "measure",
    "group",
    "sampler",
    "record",
    "store",
    "enclosing",
    "foreign",
    "history",
    "inventory",
    "plan",
    "profilers",
    "worker",
    "runner",
    "session",
    "gating.readings",
    "gating.baselines",
    "gating.ab",
    "gating.gate",
    "profile",
    "cli",
    "backends",
    "importers",
    "testing",
    "__main__",
)
FOLDERS = ("gpubench.gating", "gpubench.judging", "gpubench.views")  # each of their modules is a layer of its own
ROOMS = ("suites", "collectors", "reports", "ci")

# Every broad except of the shipped code: (file, function) and why it may catch everything.
BROAD_EXCEPTS = {
    ("gpubench/__main__.py", "main"): "the process's end: a bug keeps its traceback and gets an exit status of its own",
    ("gpubench/plugins.py", "_loaded"): "a plugin's load: third-party code may raise anything",
    ("gpubench/plugins.py", "asked"): "a vendor probe: bindings raise KeyError, AttributeError, anything",
    ("gpubench/worker.py", "Worker.part"): "a case's boundary: what it raises is its result, and the run goes on",
}


class Import(NamedTuple):
    """One import statement: `where` it stands, the dotted `target`, whether it is `.relative`."""

    where: str
    target: str
    relative: bool


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


SHIPPED = python_files("gpubench", *ROOMS)
CORE = python_files("gpubench")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file, also inside functions; `from gpubench import stats` gives gpubench.stats."""
    for node in ast.walk(tree_of(path)):
        where = f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(where, alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                target = f"{base}.{alias.name}" if base in ("gpubench", *FOLDERS) else base
                yield Import(where, target, node.level > 0)


def layer_of(path: Path) -> str:
    """`stats`, `judging.effect`; of a package that is one layer its name; of a folder's face `__init__`."""
    parts = path.relative_to(ROOT / "gpubench").with_suffix("").parts
    if f"gpubench.{parts[0]}" not in FOLDERS:
        return parts[0]
    return parts[1] if parts[1] == "__init__" else ".".join(parts)


def layer_named(target: str) -> str:
    """The layer of an imported `gpubench.judging.effect` or `gpubench.stats`."""
    parts = target.split(".")
    return ".".join(parts[1 : 3 if ".".join(parts[:2]) in FOLDERS else 2])


def is_room(target: str) -> bool:
    """Whether a dotted name is a room's or a backend's: those are reached through plugins alone."""
    return re.match(r"gpubench\.(suites|collectors|reports|ci|backends|importers)\b", target) is not None


def test_every_core_module_has_a_layer():
    assert {layer_of(path) for path in CORE} - {"__init__"} <= set(LAYERS)


# The imports upwards that there are, each made only when it is needed, and why.
UPWARD = {
    ("gpubench/model.py", "gpubench.frame"): "a run's methods for notebooks: figures are made of a run, not by it"
}


def test_a_module_imports_only_the_layers_above_it():
    height = {layer: height for height, layer in enumerate(("__init__", *LAYERS))}
    wrong = [
        f"{found.where} imports {found.target}"
        for path in CORE
        for found in imports(path)
        if found.target.startswith("gpubench.") and not found.relative
        if (name_of(path), found.target) not in UPWARD
        if height.get(layer_named(found.target), 0) > height[layer_of(path)]
    ]
    assert wrong == []


def test_the_core_uses_no_relative_imports_outside_its_packages():
    flat = [path for path in CORE if path.parent == ROOT / "gpubench"]
    assert [found.where for path in flat for found in imports(path) if found.relative] == []


def test_the_core_names_no_room_and_no_backend():
    named = [
        f"{found.where} imports {found.target}" for path in CORE for found in imports(path) if is_room(found.target)
    ]
    spelled = [
        f"{name_of(path)}:{node.lineno} spells {node.value}"
        for path in CORE
        if layer_of(path) != "backends"  # which finds its own kernels by its own name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_room(node.value)
    ]
    assert named + spelled == []


def test_backends_do_not_know_the_command_line():
    wrong = [
        found.where
        for path in python_files("gpubench/backends", "gpubench/importers")
        for found in imports(path)
        if found.target.startswith("gpubench.cli")
    ]
    assert wrong == []


def test_rooms_import_only_the_api_and_their_own_siblings():
    wrong = [
        f"{found.where} imports {found.target}"
        for path in python_files(*ROOMS)
        for found in imports(path)
        if not found.relative
        if found.target.split(".")[0] in ("gpubench", "tests", *ROOMS) and found.target != "gpubench.api"
    ]
    assert wrong == []


def test_importers_import_only_the_api_and_their_own_siblings():
    wrong = [
        f"{found.where} imports {found.target}"
        for path in python_files("gpubench/importers")
        for found in imports(path)
        if not found.relative
        if found.target.split(".")[0] == "gpubench" and found.target != "gpubench.api"
    ]
    assert wrong == []


def test_a_rooms_relative_imports_stay_inside_the_room():
    too_far = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files(*ROOMS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level >= len(path.relative_to(ROOT).parts)
    ]
    assert too_far == []


def test_tests_reach_rooms_through_plugins():
    rooms = tuple(f"gpubench.{room}" for room in ROOMS)
    wrong = [
        f"{found.where} imports {found.target}"
        for path in python_files("tests")
        for found in imports(path)
        if found.target.startswith(rooms) or found.target.split(".")[0] in ROOMS
    ]
    assert wrong == []


def section(document: str, title: str) -> str:
    """The text under one heading of a Markdown document."""
    return re.split(r"^## ", document.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def test_architecture_lists_the_layers_and_the_rooms_of_the_code():
    document = (ROOT / "ARCHITECTURE.md").read_text()
    layers = re.findall(r"^    ([\w/]+)", section(document, "Layers"), re.MULTILINE)
    rooms = re.findall(r"^\| `(\w+)/`", section(document, "Rooms"), re.MULTILINE)
    assert list(LAYERS) == [layer.replace("/", ".") for layer in layers]
    assert sorted(ROOMS) == sorted(rooms)


def test_architecture_fits_one_page():
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 112  # sixty of them are modules


def folder_of(package: str) -> Path:
    """Where a package's files lie, by pyproject's mapping; the longest mapped prefix counts."""
    mapping = SETUPTOOLS["package-dir"]
    prefix = max((known for known in mapping if f"{package}.".startswith(f"{known}.")), key=len)
    return ROOT / mapping[prefix] / package.removeprefix(prefix).strip(".").replace(".", "/")


def test_pyproject_names_every_package():
    there = {path.parent for path in SHIPPED if path.name == "__init__.py"}
    assert there == {folder_of(package) for package in SETUPTOOLS["packages"]}


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_every_file_of_a_package_is_in_the_wheel(package):
    globs = SETUPTOOLS["package-data"].get(package, [])
    files = [
        path.name for path in folder_of(package).iterdir() if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert [file for file in files if not any(fnmatch(file, glob) for glob in globs)] == []


def test_every_folder_of_the_shipped_code_is_a_package():
    folders = {path for room in ("gpubench", *ROOMS) for path in (ROOT / room).rglob("*") if path.is_dir()}
    code = {path for path in folders if path.name != "__pycache__"}
    assert set() == {name_of(path) for path in code if not (path / "__init__.py").exists()}


def test_the_version_is_pyprojects():
    assert PYPROJECT["project"]["version"] == gpubench.__version__
    assert PYPROJECT["project"]["name"] == gpubench.DISTRIBUTION


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether it catches everything; a clean-up that ends in a bare `raise` catches nothing."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(each is None or getattr(each, "id", "") in ("Exception", "BaseException") for each in caught)


def broad_excepts(path: Path) -> Iterator[tuple[str, str]]:
    """(file, function) of each broad except, a method by Class.method."""

    def walk(node: ast.AST, place: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ExceptHandler) and is_broad(child):
                yield name_of(path), ".".join(place)
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from walk(child, (*place, child.name) if named else place)

    return walk(tree_of(path), ())


def test_broad_excepts_stand_only_where_the_list_says():
    found = Counter(place for path in SHIPPED for place in broad_excepts(path))
    expected = Counter(place for place in BROAD_EXCEPTS if (ROOT / place[0]).exists())
    assert found == expected


def test_no_file_is_longer_than_400_lines():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in SHIPPED}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_no_function_is_longer_than_60_lines():
    lengths = {
        f"{name_of(path)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in SHIPPED
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_link_to_a_file_of_the_repository_leads_somewhere(document):
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []
