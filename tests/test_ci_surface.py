"""The templates for CIs, run as far as possible without the CI: their scripts are extracted and called."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import _files as files
import _make as make
import pytest
import yaml
from _sides import TRIAD, noisy

ROOT = Path(__file__).parents[1]
CI = ROOT / "ci"
ACTION, COMPONENT, JENKINS = ROOT / "action.yml", ROOT / "templates" / "gate.yml", CI / "Jenkinsfile"
TEMPLATES = (ACTION, COMPONENT, JENKINS)


def scripts(path):
    """Return what a template runs: `run: |` or an item `- |` in YAML, a text in three quotes in Groovy."""
    if path == JENKINS:
        return re.findall(r"script: '''(#!/bin/bash\n.*?)'''", path.read_text(), re.DOTALL)
    blocks, lines = [], path.read_text().splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"\s*(run:|-) \|", line):
            depth = len(lines[number + 1]) - len(lines[number + 1].lstrip())
            block = []
            for inner in lines[number + 1 :]:
                if inner.strip() and len(inner) - len(inner.lstrip()) < depth:
                    break
                block.append(inner[depth:])
            blocks.append("\n".join(block) + "\n")
    return blocks


def bash(script, cwd, **environment):
    """Run a script as a CI does, which stops at the first error."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    clean.pop("CI", None)
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=clean | {"PATH": path} | environment,
        timeout=60,
        check=False,
    )


@pytest.fixture
def runs(tmp_path):
    """Write a baseline, and a slower candidate whose name contains a blank."""
    for name, centre in (("base.jsonl", 1.0), ("a candidate.jsonl", 1.1)):
        results = [make.result(make.timing(v), of=TRIAD, replicate=i) for i, v in enumerate(noisy(centre, 1e-3))]
        files.write(tmp_path / name, *results)
    return tmp_path


ARGUMENTS = "gate 'a candidate.jsonl' --baseline base.jsonl"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
@pytest.mark.parametrize("linter", [("bash", "-n"), ("shellcheck", "-s", "bash", "-")], ids=lambda linter: linter[0])
def test_bash_and_shellcheck_accept_every_script_of_a_template(path, linter):
    if not shutil.which(linter[0]):
        pytest.skip(f"{linter[0]} is not installed")
    assert scripts(path)
    for script in scripts(path):
        done = subprocess.run(linter, input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_action_is_whole_and_uses_only_inputs_that_it_declares():
    action = yaml.safe_load(ACTION.read_text())
    assert set(action) == {"name", "description", "inputs", "outputs", "runs"}
    assert set(re.findall(r"inputs\.(\w+)", ACTION.read_text())) == set(action["inputs"])
    steps = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert all("name" in step and (step.get("shell") == "bash" or "uses" in step) for step in steps)
    ids = {step["id"] for step in steps if "id" in step}
    assert set(re.findall(r"steps\.(\w+)\.", ACTION.read_text())) == ids


def test_the_component_is_whole_and_uses_only_inputs_that_it_declares():
    spec, jobs = yaml.safe_load_all(COMPONENT.read_text())
    used = set(re.findall(r"\$\[\[ inputs\.(\w+) \]\]", COMPONENT.read_text()))
    assert used == set(spec["spec"]["inputs"])
    assert all({"description", "default"} == set(declared) for declared in spec["spec"]["inputs"].values())
    (job,) = jobs.values()
    assert set(job) == {"stage", "tags", "variables", "before_script", "script", "artifacts"}
    assert not [line for line in [*job["before_script"], *job["script"]] if "$[[" in line], "an input is no code"


def test_the_jenkins_stage_has_closed_blocks_and_no_interpolated_script():
    text = re.sub(r"//[^\n]*|'''.*?'''|'[^'\n]*'|\"[^\"\n]*\"", "", JENKINS.read_text(), flags=re.DOTALL)
    for opening, closing in ("{}", "()"):
        assert text.count(opening) == text.count(closing) > 0
    assert re.findall(r"\b(pipeline|agent|stages|stage|steps|post|always)\b", text) == [
        *("pipeline", "agent", "stages", "stage", "steps", "post", "always")
    ]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_action_that_a_template_uses_is_pinned_by_commit(path):
    used = re.findall(r"uses: (\S+)", "\n".join(line for line in path.read_text().splitlines() if line[:1] != "#"))
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_inserts_an_expression_into_a_script(path):
    """An input inserted into a script is code; an input in a variable is text."""
    assert [script for script in scripts(path) if "${{" in script] == []


def test_the_action_judges_with_gpubenchs_status_and_a_hostile_argument_stays_one_argument(runs):
    gate = next(script for script in scripts(ACTION) if "mapfile" in script)
    output, summary = runs / "output", runs / "summary.md"
    variables = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_ACTIONS": "true"}
    done = bash(gate, runs, ARGUMENTS=ARGUMENTS, **variables)
    assert done.returncode == 0, done.stderr
    assert output.read_text() == "status=1\n"
    assert "::error title=gpubench gate::" in done.stdout
    assert "**slower**" in summary.read_text()
    assert (runs / "gpubench-runs" / "comment.md").read_text().startswith("<!-- gpubench gate -->")
    assert bash('exit "$STATUS"', runs, STATUS="1").returncode == 1
    output.unlink()
    bash(
        gate, runs, ARGUMENTS="gate base.jsonl -b base.jsonl '$(touch owned)' `touch owned` ; touch owned", **variables
    )
    assert not (runs / "owned").exists()
    assert output.read_text() == "status=5\n"  # the files are missing


def test_the_jenkins_stage_judges_with_gpubenchs_status_and_a_hostile_argument_stays_one_argument(runs):
    (script,) = scripts(JENKINS)
    assert bash(script, runs, GPUBENCH_ARGUMENTS=ARGUMENTS).returncode == 1
    assert (runs / "gpubench-runs" / "junit.xml").read_text().startswith("<?xml")
    assert bash(script, runs, GPUBENCH_ARGUMENTS=f"{ARGUMENTS} '$(touch owned)'").returncode == 5
    assert not (runs / "owned").exists()


def test_the_action_reports_the_redacted_runs_and_shows_their_figures(runs):
    (report,) = (script for script in scripts(ACTION) if "gpubench report" in script)
    (runs / "gpubench-shared").mkdir()
    (runs / "base.jsonl").rename(runs / "gpubench-shared" / "a run.jsonl")
    done = bash(report, runs, GITHUB_STEP_SUMMARY=str(runs / "summary.md"))
    assert done.returncode == 0, done.stderr
    assert (runs / "gpubench-shared" / "a run.html").read_text().endswith("</html>")
    assert "triad" in (runs / "summary.md").read_text()
    (runs / "empty").mkdir()
    assert bash(report, runs / "empty", GITHUB_STEP_SUMMARY="none").returncode == 0


PYTHON = """#!/bin/bash
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "$*" >>"%s/asked"\\n' "$PWD" >"$3/bin/pip"
printf '#!/bin/bash\\necho installed\\n' >"$3/bin/gpubench"
chmod +x "$3/bin/pip" "$3/bin/gpubench"
"""
ACTION_ASKS = ["--require-hashes -r /action/locks/host.lock", "--no-deps --no-build-isolation /action"]


@pytest.mark.parametrize(("template", "asked"), [(ACTION, ACTION_ASKS), (COMPONENT, ["gpubench-suite[host] @ here"])])
def test_the_install_step_makes_an_environment_and_puts_its_gpubench_on_the_path(tmp_path, template, asked):
    """A stand-in for Python makes an environment whose pip only records what it is asked for."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(PYTHON)
    (tmp_path / "bin" / "python3").chmod(0o755)
    later = '[ -z "$GITHUB_PATH" ] || PATH="$(cat "$GITHUB_PATH"):$PATH"\ngpubench'
    script = f'PATH="$PWD/bin:$PATH"\n{scripts(template)[0]}\n{later}'
    variables = {
        "GPUBENCH_INSTALL": "gpubench-suite[host] @ here",
        "EXTRA": "host",
        "RUNNER_TEMP": str(tmp_path / "temp"),
    }
    if template == ACTION:
        variables |= {"GITHUB_ACTION_PATH": "/action", "GITHUB_PATH": str(tmp_path / "path")}
    done = bash(script, tmp_path, **variables)
    assert (done.returncode, done.stdout) == (0, "installed\n"), done.stderr
    options = "install --quiet --disable-pip-version-check "
    assert (tmp_path / "asked").read_text().splitlines() == [f"{options}{line}" for line in asked]


def test_gitlabs_script_judges_with_gpubenchs_status_and_a_hostile_argument_stays_one_argument(runs):
    before, script = scripts(COMPONENT)
    script = f"{before}\nmkdir -p gpubench-runs\n{script}"
    done = bash(script, runs, GPUBENCH_INSTALL="", GPUBENCH_ARGUMENTS=ARGUMENTS)
    assert done.returncode == 1, done.stderr
    assert (runs / "gpubench-runs" / "junit.xml").read_text().startswith("<?xml")
    hostile = bash(script, runs, GPUBENCH_INSTALL="", GPUBENCH_ARGUMENTS=f"{ARGUMENTS} '$(touch owned)'")
    assert hostile.returncode == 5
    assert not (runs / "owned").exists()


NAMES = ("gpu17", "amelia", "GPU-1234", "hunter2")


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Return a baseline and a candidate that name a machine and a user, in fields and in the reason of a failure."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    facts = make.facts(make.device(uuid="GPU-1234"), host=(("hostname", "gpu17"),))
    reason = "gpu17: TOKEN=hunter2 cannot open '/home/amelia/a b.bin'"
    failed = make.result(of=make.case("copy"), status="failed", cause="crash", reason=reason)
    (tmp_path / "gpubench-runs" / "gpu17").mkdir(parents=True)
    for place in ("base.jsonl", "a candidate.jsonl", "gpubench-runs/a.jsonl", "gpubench-runs/gpu17/b.jsonl"):
        files.write(tmp_path / place, failed, manifest=make.manifest(facts=facts))
    (tmp_path / "gpubench-runs" / "torn.jsonl").write_text("gpu17")
    (tmp_path / "gpubench-runs" / "history.sqlite").write_text("gpu17")
    return tmp_path


def left_names(folder):
    """Return the names that stand in the files of a folder or in their paths, and the number of run files."""
    texts = [f"{path.relative_to(folder)} {path.read_text()}" for path in folder.rglob("*") if path.is_file()]
    return [name for name in NAMES if name in "".join(texts)], len([*folder.rglob("*.jsonl")])


def test_the_action_stores_and_shows_no_names(named):
    gate, redact, report = (s for s in scripts(ACTION) if re.search("mapfile|redact|gpubench report", s))
    variables = {"GITHUB_OUTPUT": str(named / "output"), "GITHUB_STEP_SUMMARY": str(named / "summary.md")}
    done = bash(gate, named, ARGUMENTS=ARGUMENTS, GITHUB_ACTIONS="true", CI="true", **variables)
    assert (done.returncode, (named / "output").read_text()) == (0, "status=3\n")
    output = done.stdout + done.stderr + (named / "summary.md").read_text()
    assert "cannot open" in output
    assert "(left out)" in output
    assert [name for name in NAMES if name in output] == []
    assert bash(redact, named).returncode == 0
    assert bash(report, named, GITHUB_STEP_SUMMARY=variables["GITHUB_STEP_SUMMARY"]).returncode == 0
    assert len([*(named / "gpubench-shared").glob("*.html")]) == 1
    assert left_names(named / "gpubench-shared") == ([], 2)
    assert (named / "gpubench-shared" / "comment.md").exists()
    uploaded = re.findall(r"^        path: (.*)$", ACTION.read_text(), re.MULTILINE)
    assert uploaded == ["gpubench-shared"]


@pytest.mark.slow
def test_gitlabs_artifacts_hold_no_names(named):
    before, script = scripts(COMPONENT)
    done = bash(f"{before}\n{script}", named, GPUBENCH_INSTALL="", GPUBENCH_ARGUMENTS=ARGUMENTS, CI="true")
    assert done.returncode == 3, done.stderr
    assert left_names(named / "gpubench-shared") == ([], 2)
    assert re.findall(r"gpubench-shared\S*", COMPONENT.read_text().split("artifacts:")[-1]) == [
        "gpubench-shared/]",
        "gpubench-shared/junit.xml",
    ]


FLEET = """#!/bin/bash
echo "$*"
[ "$2" = run ] && exit "$MEASURED"
exit "$JUDGED"
"""


@pytest.mark.parametrize(
    ("measured", "judged", "status"), [(0, 0, 0), (0, 1, 1), (4, 0, 4), (4, 1, 1), (0, 6, 6), (4, 4, 4)]
)
def test_slurms_script_measures_a_fleet_and_ends_with_the_judgement(tmp_path, measured, judged, status):
    (tmp_path / "gpubench").write_text(FLEET)
    (tmp_path / "gpubench").chmod(0o755)
    environment = {"SLURM_JOB_ID": "7", "MEASURED": str(measured), "JUDGED": str(judged)}
    done = bash(f"bash {CI / 'slurm.sh'}", tmp_path, **environment, GPUBENCH=str(tmp_path / "gpubench"))
    assert done.returncode == status, done.stderr
    run, judge = done.stdout.splitlines()
    assert run == "fleet run headline --slurm --out gpubench-runs/7"
    assert judge == "fleet judge gpubench-runs/7 --out gpubench-runs/7/fleet.xml --out gpubench-runs/7/fleet.md --floor"


def test_slurms_script_takes_all_gpus_of_each_node_and_arguments_for_the_judge(tmp_path):
    script = CI / "slurm.sh"
    environment = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8", "GPUBENCH": "/bin/echo"}
    run = bash(f"bash {script}", tmp_path, **environment).stdout.splitlines()[0]
    assert run == "fleet run headline --slurm --out gpubench-runs/7 -- --gpus-per-node=8"
    asked = [line.split()[1] for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert "--exclusive" in asked, "without it Slurm gives a job no GPU that it does not ask for"
    assert not [option for option in asked if option.startswith("--gpus")], "the number of GPUs is that of the nodes"
    done = bash(f"bash {CI / 'slurm.sh'} --baseline 'a b'", tmp_path, SLURM_JOB_ID="7", GPUBENCH="/bin/echo")
    assert done.stdout.splitlines()[1].endswith("--baseline a b")
    assert "--floor" not in done.stdout


def test_slurms_script_judges_nothing_where_nothing_was_measured(tmp_path):
    done = bash(f"bash {CI / 'slurm.sh'}", tmp_path, SLURM_JOB_ID="7", GPUBENCH="/bin/false")
    assert done.returncode == 1
    (tmp_path / "gpubench").write_text(FLEET)
    (tmp_path / "gpubench").chmod(0o755)
    done = bash(
        f"bash {CI / 'slurm.sh'}", tmp_path, SLURM_JOB_ID="7", MEASURED="2", GPUBENCH=str(tmp_path / "gpubench")
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 1)
