"""Finding and loading plugins, with distributions made for the test."""

import importlib
import sys
import textwrap

import pytest

from gpubench import plugins
from gpubench.base.errors import UsageError


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Yield a function that puts a distribution with report modules {file: source} on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def installed(package, modules, value=None):
        folder = tmp_path / package
        folder.mkdir()
        for name, source in {"__init__": "", **modules}.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(source))
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[gpubench.reports]\nx = {value or package}\n")
        importlib.invalidate_caches()

    yield installed
    for name in set(sys.modules) - before:
        if name.partition(".")[0].startswith("third_"):
            del sys.modules[name]


def test_a_file_in_a_third_partys_package_is_a_plugin_with_the_files_name(install):
    install("third_party", {"third_one": "report = 'the object'", "_shared": "raise SystemExit"})
    assert "third_one" in plugins.names("reports")
    assert "_shared" not in plugins.names("reports")
    assert "third_party.third_one" not in sys.modules, "listing names imports none of them"
    assert plugins.load("reports", "third_one") == "the object"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import third_missing", "ModuleNotFoundError: No module named 'third_missing'"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("nothing = 1", "it has no `report`"),
    ],
)
def test_a_broken_plugin_fails_only_its_own_load_and_keeps_its_cause(install, source, message):
    install("third_party", {"third_bad": source, "third_good": "report = 'fine'"})
    with pytest.raises(plugins.BrokenPlugin) as broken:
        plugins.load("reports", "third_bad")
    assert str(broken.value).startswith(f"plugin third_bad (third_party.third_bad) does not load: {message}")
    assert broken.value.__cause__ is not None
    assert plugins.load("reports", "third_good") == "fine"


def test_an_entry_point_left_behind_by_a_removed_package_hides_no_other(install):
    install("third_gone", {}, value="third_missing.reports")
    install("third_module", {"third_no": "report = 1"}, value="third_module.third_no")
    install("third_party", {"third_one": "report = 1"})
    assert "third_one" in plugins.names("reports")
    assert "third_no" not in plugins.names("reports"), "an entry point that names a module has no plugins"


def test_no_third_party_can_replace_a_built_in_plugin(install):
    ours = plugins.names("backends")
    name = plugins.names("reports")[0]
    install("third_party", {name: "report = 'theirs'"})
    assert plugins.load("reports", name) != "theirs"
    assert plugins.names("backends") == ours


def test_an_unknown_name_is_answered_with_the_nearest(install):
    install("third_party", {"third_one": "report = 1"})
    with pytest.raises(UsageError, match=r"^no report 'third_on'; did you mean third_one\?$"):
        plugins.load("reports", "third_on")
    error = plugins.unknown("suite", "zzz", ["latency", "bandwidth"])
    assert str(error) == "no suite 'zzz'; choose from bandwidth, latency"
    assert str(plugins.unknown("suite", "zzz", [])) == "no suite 'zzz'; none is installed"
