"""The wheel and the sdist hold exactly what the source folders hold."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
COMMANDS = ("gpubench", "gpubench-suite")
WHEEL = "from setuptools import build_meta as b; b.build_wheel('.')"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a copy of the source with its sdist and wheel inside: an old build folder would leak into the wheel."""
    copy = tmp_path_factory.mktemp("source") / "copy"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "gpubench-runs")
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{WHEEL}; b.build_sdist('.')"], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return copy


def source_files():
    return {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in SETUPTOOLS["package-dir"].items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_exactly_the_source_folders_its_licence_and_its_commands(built):
    """A `.pth` file is run by every Python of the environment, and a second top level may shadow another package."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        held = {name for name in names if ".dist-info/" not in name}
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()
        commands = archive.read(f"{info}/entry_points.txt").decode().partition("\n\n")[0].splitlines()
    assert source_files() == held
    assert {name.partition("/")[0] for name in held} == {"gpubench"}
    assert [name for name in names if name.endswith(".pth") or ".data/" in name] == []
    assert commands == ["[console_scripts]", *(f"{name} = gpubench.__main__:main" for name in COMMANDS)]


def test_the_index_accepts_the_metadata_of_the_wheel_and_the_sdist(built):
    """`twine check --strict` asks the same: valid fields, and a description of a known type."""
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as packed:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        (member,) = (member for member in packed.getmembers() if re.fullmatch("[^/]+/PKG-INFO", member.name))
        texts = archive.read(name), packed.extractfile(member).read()
    for text in texts:
        metadata = Metadata.from_email(text, validate=True)
        assert (metadata.name, metadata.description_content_type) == ("gpubench-suite", "text/markdown")
        assert "## " in metadata.description


def test_the_sdist_is_enough_to_build_the_same_wheel(built, tmp_path):
    (sdist,) = built.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    done = subprocess.run([sys.executable, "-c", WHEEL], cwd=unpacked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (first,), (second,) = built.glob("*.whl"), unpacked.glob("*.whl")
    assert set(zipfile.ZipFile(first).namelist()) == set(zipfile.ZipFile(second).namelist())


def test_the_installed_entry_points_are_pyprojects():
    """Where this fails, pyproject.toml has changed since `pip install -e .`: install again."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = {
        (group, name, value) for group, points in project["entry-points"].items() for name, value in points.items()
    }
    installed = {(point.group, point.name, point.value) for point in distribution(project["name"]).entry_points}
    assert expected <= installed, "install again: pip install --no-deps -e ."
