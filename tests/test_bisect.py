"""`gpubench bisect` finds the commit that was planted in a history, and skips what cannot be built or judged."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.base.errors import CannotJudge, FileError, UsageError
from gpubench.tools.gating import bisect

TESTS = str(Path(__file__).parent)
GPUBENCH = f"""
import sys
from pathlib import Path
sys.path.insert(0, {TESTS!r})
import _files, _make
words = sys.argv[1:]
out = Path(words[words.index("--out") + 1])
seconds = float(Path(__file__).with_name("built").read_text()) * (1 + 1e-3 * (int(out.stem[-3:]) % 3))
_files.write(out, _make.result(_make.timing(seconds), of=_make.case("triad")))
"""


def git(*words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Return a function that commits a content of the file `speed` after the other, and returns the commits."""

    def commit(contents):
        for number, content in enumerate(contents):
            (tmp_path / "repository" / "speed").write_text(content)
            (tmp_path / "repository" / "number").write_text(str(number))
            git("add", ".")
            git("commit", "-q", "-m", f"commit {number}")
        return git("rev-list", "--reverse", "HEAD").splitlines()

    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    git("init", "-q")
    (tmp_path / "repository" / "measure.py").write_text(GPUBENCH)
    return commit


BUILD = ("sh", "-c", "grep -qv broken speed && cp speed built && echo changed >number")
STATUS = {"1.0": 0, "1.1": 1, "noisy": 4, "failed": 3}


def search(folder):
    """Return a search whose verdict is what stands in the checkout's file, and the words that it told."""
    told = []

    def judge(pair, place):
        built = Path(pair[1].command[0]).with_name("built").read_text()
        if built == "crash":
            raise FileError("no run file")
        return STATUS[built]

    return bisect.Bisection(Path.cwd(), BUILD, "{}/measure.py", folder, judge, told.append), told


HISTORIES = (  # contents of the commits, the one to find, the number of those that are skipped
    (["1.0", "1.1"], 1, 0),
    (["1.0"] * 7 + ["1.1"] * 9, 7, 0),
    (["1.0"] + ["1.1"] * 9, 1, 0),
    (["1.0"] * 9 + ["1.1"], 9, 0),
    (["1.0", "1.0", "noisy", "1.0", "1.0", "1.1", "1.1", "1.1"], 5, None),
    (["1.0", "1.0", "1.0", "1.1", "broken", "crash", "failed", "1.1"], 3, None),
)


@pytest.mark.parametrize(("contents", "planted", "skipped"), HISTORIES)
def test_the_planted_commit_is_found_and_the_users_checkout_stays(history, tmp_path, contents, planted, skipped):
    commits = history(contents)
    (tmp_path / "out").mkdir()
    bisection, told = search(tmp_path / "out")
    found = bisection.find(commits[0], "HEAD")
    assert found.commits == (commits[planted],)
    assert skipped is None or found.skipped == skipped
    assert found.skipped == sum(line.endswith(": skip") for line in told)
    assert (git("rev-parse", "HEAD"), git("status", "--porcelain")) == (commits[-1], "")
    assert git("worktree", "list").count("\n") == 0


def test_commits_that_cannot_be_judged_beside_the_planted_one_are_all_named(history, tmp_path):
    commits = history(["1.0", "noisy", "broken", "1.1", "1.1"])
    (tmp_path / "out").mkdir()
    found = search(tmp_path / "out")[0].find(commits[0], commits[-1])
    assert set(found.commits) == set(commits[1:4])
    assert found.skipped == 2


@pytest.mark.parametrize(
    ("contents", "ends", "error", "message"),
    [
        (["1.0", "1.0"], (0, 1), CannotJudge, "it is not slower"),
        (["1.0", "noisy"], (0, 1), CannotJudge, "the gate cannot judge it"),
        (["1.0", "broken"], (0, 1), UsageError, "cannot be built"),
        (["1.0", "1.1"], (1, 0), UsageError, "is no ancestor of"),
    ],
)
def test_a_history_without_a_slower_end_is_refused(history, tmp_path, contents, ends, error, message):
    commits = history(contents)
    (tmp_path / "out").mkdir()
    with pytest.raises(error, match=message):
        search(tmp_path / "out")[0].find(*(commits[index] for index in ends))
    assert git("worktree", "list").count("\n") == 0


def test_a_name_that_is_no_commit_and_a_missing_build_are_refused(call, history):
    history(["1.0", "1.1"])
    assert call("bisect", "nothing", "HEAD", "--", "true")[0] == 2
    status, _, err = call("bisect", "HEAD~1", "HEAD")
    assert (status, "-- make" in err) == (2, True)


@pytest.mark.slow
def test_the_command_measures_each_build_in_turn_with_the_good_one(call, history):
    """Builds that write the run files of a device whose times are arithmetic; commit 3 is 10 % slower."""
    commits = history(["1.0", "1.0", "1.0", "1.1", "broken", "1.1"])
    command = f"{sys.executable} {{}}/measure.py"
    arguments = ("--command", command, "--suite", "bandwidth", "--replicates", "3", "--out", "out")
    status, out, err = call("bisect", commits[0], "HEAD", *arguments, "--", *BUILD)
    assert status == 0, err
    assert out.startswith(f"FOUND: {commits[3]}")
    assert "followed: bandwidth/triad" in err
