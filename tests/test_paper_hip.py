"""The suites through CuPy's unmodified wheel for ROCm, on a HIP runtime on paper (paper_hip/): a dry run.

`bash ci/rocm.sh` fetches the wheel and AMD's headers. What goes through shows that the calls are right and in order,
and that kernels give right answers with 64 lanes to a warp. Nothing is measured: results have the label `dry-run` and
no figure. test_paper_all.py has the cases that take long.
"""

import json
import re

import pytest
from _paper import HERE, TOO_LARGE, built, expect_dry_run, gpubench, needs_wheel, python, results_of

from gpubench import plugins

PROGRAMS = HERE / "paper_hip/programs"
# test_paper_all.py runs the cases that take seven seconds and more, and the suites that take half a minute.
LONG = {
    *("bandwidth/beside_gemm", "bandwidth/beside_gemm_on", "compilers/softmax", "gemm/skinny"),
    *("inference/prefill_attention", "p2p/control", "soak/burn", "soak/memory", "soak/product"),
}
LONG_SUITES = {"patterns", "tensor"}
RATE = re.compile(r"\d\s*[kMGT]?B/s")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(780), *needs_wheel]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    return built(tmp_path_factory.mktemp("paper"))


def test_the_wheel_imports_and_computes(environment, tmp_path):
    program = (
        "import cupy; a = cupy.arange(10, dtype='float32'); b = cupy.ones((30, 40), 'float16');"
        "print(cupy.cuda.runtime.is_hip, (a * 2 + 1).sum(), (b @ b.T)[0, 0])"
    )
    done = python(environment, tmp_path, "-c", program)
    assert done.stdout.split() == ["True", "100.0", "40.0"], done.stderr


def test_the_devices_are_found(environment, tmp_path):
    done = gpubench(environment, tmp_path, "doctor", "--json")
    devices = [device["name"] for device in json.loads(done.stdout)["devices"]]
    assert devices[:2] == ["GPU on paper", "GPU on paper"], done.stderr


def test_a_lane_of_a_matrix_instruction_has_the_elements_that_amd_documents(environment, tmp_path):
    done = python(environment, tmp_path, str(PROGRAMS / "matrix_instructions.py"))
    wrong = [line.split()[-1] for line in done.stdout.splitlines()]
    assert wrong == ["0"] * 14, done.stdout + done.stderr


def test_the_instructions_of_newer_gpus_give_the_sums_that_the_suite_expects(environment, tmp_path):
    done = python(environment, tmp_path, str(PROGRAMS / "wide_instructions.py"))
    wrong = [line.split()[-1] for line in done.stdout.splitlines()]
    assert wrong == ["0"] * 14, done.stdout + done.stderr


def test_a_step_and_a_prefill_of_a_small_model_give_the_logits_of_double_precision(environment, tmp_path):
    done = python(environment, tmp_path, str(PROGRAMS / "small_model.py"))
    errors = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(errors) == 6, done.stderr
    assert all(0 < error < 5e-3 for error in errors)


@pytest.mark.parametrize("name", sorted(set(plugins.names("suites")) - LONG_SUITES))
def test_every_case_of_a_suite_passes_or_names_what_is_missing(name, environment, tmp_path):
    definitions = plugins.load("suites", name).definitions
    short = {case: definitions[case] for case in definitions if f"{name}/{case}" not in LONG | TOO_LARGE}
    cases = [f"{name}/{case}{'[' if definition.axes else ''}" for case, definition in short.items()]
    results, done = results_of(environment, tmp_path / "first", name, cases)
    assert results, done.stderr
    expect_dry_run(environment, tmp_path, results)


def test_no_command_shows_a_figure_of_a_dry_run(environment, tmp_path):
    """Cases are timed, but no output of the run shows a rate, and the gate has nothing to judge."""
    arguments = (
        "run",
        "bandwidth",
        "--device",
        "rocm:0",
        "--tier",
        "smoke",
        "--filter",
        "bandwidth/copy",
        "-o",
        "a.jsonl",
    )
    on_the_host = gpubench(environment, tmp_path, *(word.replace("rocm:0", "host") for word in arguments[:-2])).stdout
    assert RATE.search(on_the_host)  # the pattern must match a figure where there is one
    outputs = [gpubench(environment, tmp_path, *arguments)]
    outputs += [gpubench(environment, tmp_path, "show", "a.jsonl")]
    for form in ("html", "md", "json", "prom", "csv"):
        gpubench(environment, tmp_path, "report", "a.jsonl", "--format", form, "-o", f"report.{form}")
        assert (tmp_path / f"report.{form}").is_file()
    texts = [done.stdout + done.stderr for done in outputs]
    texts += [
        (tmp_path / f"report.{form}").read_text(encoding="utf-8") for form in ("html", "md", "json", "prom", "csv")
    ]
    assert all("dry-run" in text for text in texts[:2])
    for text in texts:
        assert not RATE.search(text)
    against = gpubench(environment, tmp_path, "compare", "a.jsonl", "a.jsonl")
    assert not RATE.search(against.stdout + against.stderr)
    judged = gpubench(environment, tmp_path, "gate", "a.jsonl", "--baseline", "a.jsonl")
    assert judged.returncode == 4
    assert "a dry run measures nothing" in judged.stdout
