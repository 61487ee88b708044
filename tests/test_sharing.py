"""The commands that prepare files for sharing, as a user calls them."""

from pathlib import Path

import _make as make
import pytest
from _files import write

from gpubench.model import store


@pytest.fixture
def run(tmp_path):
    facts = make.facts(make.device(uuid="GPU-1234"), host=(("hostname", "gpu17"),))
    failed = make.result(of=make.case("copy"), status="failed", cause="crash", reason="died on gpu17")
    return write(tmp_path / "run.jsonl", make.result(), failed, manifest=make.manifest(facts=facts))


def test_a_report_names_neither_host_nor_device_unless_asked(call, run):
    assert call("report", run, "-o", "a.md") == (0, "", "written: a.md\n")
    status, _, said = call("report", run, "-o", "b.html", "--no-redact")
    assert (status, said.split(":")[0]) == (0, "not anonymised")
    assert "gpu17" not in Path("a.md").read_text()
    page = Path("b.html").read_text()
    assert "died on gpu17" in page
    assert "GPU-1234" in page


def test_a_page_takes_several_runs_and_a_table_of_figures_takes_one(call, run):
    assert call("report", run, run, run, "-o", "a.html") == (0, "", "written: a.html\n")
    page = Path("a.html").read_text()
    assert "3 runs: NVIDIA H200" in page
    assert "gpu17" not in page
    status, _, said = call("report", run, run, "-o", "a.csv")
    assert (status, Path("a.csv").exists()) == (2, False)
    assert "a .csv report takes one run; .html takes several" in said


def test_a_redacted_run_is_a_run_file_with_the_same_numbers(call, run):
    assert call("redact", run, "-o", "shared.jsonl.gz")[0] == 0
    before, after = store.read_run(run), store.read_run("shared.jsonl.gz")
    assert "gpu17" not in repr(after)
    assert [result.series for result in after.results] == [result.series for result in before.results]
    assert after.complete
    call("redact", run, "-o", "again.jsonl")
    assert store.read_run("again.jsonl") == after, "two of one device join"


def test_a_folder_is_redacted_whole_and_each_file_hides_the_names_of_all(call, run, tmp_path):
    """Names in file names are hidden, too. An unreadable file is left out and reported, and sets the exit status."""
    facts = make.facts(host=(("hostname", "gpu18"),))
    (tmp_path / "runs" / "gpu18").mkdir(parents=True)
    met = make.result(of=make.case("copy"), status="failed", reason="gpu17 and gpu18 do not meet")
    for name in ("gpu18/a.jsonl", "b.jsonl.gz"):
        write(tmp_path / "runs" / name, met, manifest=make.manifest(facts=facts))
    run.rename(tmp_path / "runs" / "run.jsonl")
    assert call("redact", "runs", "-o", "shared")[0] == 0
    shared = {path: store.read_run(path) for path in sorted(Path("shared").rglob("*.jsonl*"))}
    assert len(shared) == 3
    assert "gpu1" not in repr(shared)
    assert call("redact", "runs", "-o", "shared")[0] == 2, "it exists"
    assert call("redact", "runs", "-o", "runs/shared")[0] == 2, "inside itself"
    (tmp_path / "runs" / "torn.jsonl").write_text("{")
    status, _, said = call("redact", "runs", "-o", "again")
    assert (status, len([*Path("again").rglob("*.jsonl*")])) == (5, 3)
    assert "left out: runs/torn.jsonl" in said


def test_without_a_folder_for_the_salt_a_report_is_still_written(call, run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    status, _, said = call("report", run, "-o", "a.md")
    assert status == 0
    assert "its pseudonyms differ from those in files shared before" in said
    assert "gpu17" not in Path("a.md").read_text()


@pytest.mark.parametrize("command", ["report", "redact"])
def test_existing_files_are_replaced_only_on_request(call, run, tmp_path, command):
    out = tmp_path / "out.md"
    out.write_text("mine")
    status, _, said = call(command, run, "-o", out)
    assert (status, said) == (2, f"gpubench: {out} exists; --force replaces it\n")
    assert out.read_text() == "mine"
    assert call(command, run, "-o", out, "--force")[0] == 0
    assert out.read_text() != "mine"


@pytest.mark.parametrize("command", ["report", "redact"])
@pytest.mark.parametrize("place", ["missing/out.md", "file/out.md"])
def test_an_unwritable_output_is_refused_in_one_line(call, run, tmp_path, command, place):
    (tmp_path / "file").touch()
    status, out, said = call(command, run, "-o", place)
    assert (status, out) == (2, "")
    assert said.startswith(f"gpubench: cannot write {place}: ")
    assert said.count("\n") == 1


IMPORTS = Path(__file__).parent / "imports"


def test_the_output_of_another_tool_becomes_a_run_that_can_be_reported(call):
    status, out, said = call("import", IMPORTS / "nvbandwidth-v0.8.txt", IMPORTS / "gpu-cache.txt", "-o", "a.jsonl")
    assert (status, out) == (0, "")
    assert "nvbandwidth, 3 results" in said
    assert call("report", "a.jsonl", "-o", "a.md")[0] == 0
    assert "12.98 GB/s" in Path("a.md").read_text()
    assert "RTX 3050" in call("show", "a.jsonl")[1] + Path("a.md").read_text()


def test_an_import_names_the_values_that_it_left_out(call):
    status, _, said = call("import", IMPORTS / "superbench.jsonl", "--from", "superbench")
    assert status == 0
    assert "left out, since their unit is not stated anywhere: gpu-sm-copy-bw/dtoh" in said
    assert len(list(Path("gpubench-runs").glob("*-import.jsonl"))) == 1


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        ((IMPORTS / "gpu-cache.txt", "--from", "nothing"), 2),
        ((IMPORTS / "gpu-cache.txt", "--from", "mixbench"), 5),
        ((__file__,), 5),
        (("missing.txt",), 5),
        ((IMPORTS,), 5),
        ((IMPORTS / "gpu-cache.txt", __file__), 5),
    ],
)
def test_a_refused_import_gives_one_line_and_writes_nothing(call, tmp_path, arguments, status):
    exit_status, out, said = call("import", *arguments, "-o", "a.jsonl")
    assert (exit_status, out, said.count("\n")) == (status, "", 1)
    assert not (tmp_path / "a.jsonl").exists()


def test_an_import_never_replaces_what_it_reads(call, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes((IMPORTS / "gpu-cache.txt").read_bytes())
    status, _, said = call("import", path, "-o", path, "--force")
    assert (status, "that is read" in said) == (2, True)
    assert path.read_bytes() == (IMPORTS / "gpu-cache.txt").read_bytes()


def test_a_form_can_be_named_where_the_suffix_does_not(call, run):
    assert call("report", run, "-o", "comment", "--format", "md")[0] == 0
    assert Path("comment").read_text().startswith("# gpubench")
    status, _, said = call("report", run, "-o", "other")
    assert (status, "no report format" in said) == (2, True)
    status, _, said = call("report")
    assert (status, said.count("\n")) == (2, 1), "without a run"
    status, listed, _ = call("report", "--formats")
    assert (status, all(f".{name} " in listed for name in ("csv", "html", "json", "md"))) == (0, True)
    tools = ("babelstream", "gpu-benches", "mixbench", "nccl-tests", "nvbandwidth", "nvbench", "superbench")
    status, listed, _ = call("import", "--tools")
    assert (status, all(tool in listed for tool in tools)) == (0, True)
