"""The kits for operators in ci: their scripts run with a program that ends as gpubench does."""

import json
import re
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parents[1] / "ci"
PROGRAM = """#!/bin/sh
echo "cuda:0: ok"
echo "called with $*"
exit "$ENDS"
"""


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "gpubench").write_text(PROGRAM)
    (tmp_path / "gpubench").chmod(0o755)

    def run(script, *arguments, ends, **environment):
        variables = {"PATH": "/usr/bin:/bin", "GPUBENCH": str(tmp_path / "gpubench"), "ENDS": str(ends), **environment}
        command = ["bash", str(CI / script), *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=False)

    return run


@pytest.mark.parametrize(("ends", "status"), [(0, 0), (1, 1), (4, 0), (6, 1), (2, 0), (70, 0), (127, 0)])
def test_slurm_drains_a_node_with_a_slow_or_sick_gpu_and_no_other(kit, ends, status):
    done = kit("preflight.sh", ends=ends, SLURM_JOB_GPUS="2,5", SLURM_JOB_ID="7", SLURM_SCRIPT_CONTEXT="prolog_slurmd")
    assert (done.returncode, done.stdout) == (status, "")
    assert f"prolog_slurmd, job 7, status {ends}: cuda:0: ok" in done.stderr
    assert "called with preflight --budget 30s --device cuda:2 --device cuda:5" in done.stderr


def test_a_job_without_gpus_of_its_own_is_preceded_by_a_check_of_all(kit):
    done = kit("preflight.sh", ends=0, GPUBENCH_BUDGET="20s")
    assert "gpubench, job none, status 0" in done.stderr
    assert "called with preflight --budget 20s\n" in done.stderr


@pytest.mark.parametrize(("ends", "status"), [(0, 0), (1, 1), (6, 1), (4, 2), (127, 2)])
def test_the_problem_detector_gets_a_short_line_and_its_own_status(kit, ends, status):
    done = kit("problem.sh", "preflight", "--budget", "9" * 90, ends=ends)
    assert (done.returncode, len(done.stdout)) == (status, 81)
    assert done.stdout.startswith("called with preflight --budget 999")


def test_the_rules_of_the_problem_detector_have_conditions_and_call_the_script_with_commands_of_gpubench(call):
    rules = json.loads((CI / "problem.json").read_text())
    assert {rule["condition"] for rule in rules["rules"]} == {condition["type"] for condition in rules["conditions"]}
    for rule in rules["rules"]:
        assert Path(rule["path"]).name == "problem.sh"
        options = [word for word in rule["args"] if word.startswith("--")]
        shown = call(rule["args"][0], "--help").stdout
        assert [option for option in options if option not in shown] == []


def test_the_pods_and_the_image_name_files_commands_and_options_that_exist(call):
    pods = (CI / "kubernetes.yaml").read_text()
    image = (CI / "Containerfile").read_text()
    assert re.findall(r"^kind: (\w+)$", pods, re.MULTILINE) == ["Pod", "Job"]
    for command in ("preflight", "soak"):
        words = re.findall(rf"{command}\W.*", pods)[-1]
        shown = call(command, "--help").stdout
        assert [option for option in re.findall(r"--[a-z]+", words) if option not in shown] == []
    assert (CI.parent / "locks" / f"{re.findall(r'ARG EXTRA=(.*)', image)[0]}.lock").exists()
    assert [name for name in re.findall(r"ci/\S+", image) if not (CI.parent / name).exists()] == []


@pytest.mark.parametrize(("ends", "status"), [(0, 0), (1, 1), (4, 0), (6, 1)])
def test_the_init_container_lets_the_job_start_unless_a_gpu_is_slow_or_sick(tmp_path, ends, status):
    (tmp_path / "gpubench").write_text(PROGRAM)
    (tmp_path / "gpubench").chmod(0o755)
    line = re.findall(r"- (gpubench preflight .*)", (CI / "kubernetes.yaml").read_text())[0]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ENDS": str(ends)}
    assert (
        subprocess.run(["sh", "-c", line], env=environment, stdout=subprocess.DEVNULL, check=False).returncode == status
    )
