"""The suites through CuPy's unmodified wheel for ROCm, on a HIP runtime on paper (paper_hip/): a dry run.

`bash ci/rocm.sh` fetches the wheel and AMD's headers. What goes through shows that the calls are right and in order,
and that kernels give right answers with 64 lanes to a warp. Nothing is measured: results have the label `dry-run` and
no figure.
"""

from __future__ import annotations

import json
import re

import pytest
from _paper import HERE, built, gpubench, needs_wheel, python

from gpubench import plugins
from gpubench.model import store

PROGRAMS = HERE / "paper_hip/programs"
# The cases that are not run on paper, by suite; all of every other suite are.
TOO_LARGE = "its products take minutes on the host"
TOO_LONG = "it takes ten seconds and more on two cores"
BY_A_PROGRAM = "the same kernels run at a small size by a program in paper_hip/programs"
LEFT_OUT = {
    "bandwidth": {"beside_gemm": TOO_LARGE, "beside_gemm_on": TOO_LARGE},
    "compilers": {"softmax": "the case build has the same kernel"},
    "gemm": {"skinny": TOO_LARGE, "decoder": TOO_LARGE, "read": "bandwidth has a read of the same kind"},
    "inference": {"step": BY_A_PROGRAM, "prefill": BY_A_PROGRAM, "prefill_attention": BY_A_PROGRAM},
    "p2p": {"control": "a message waits for a time slice of the host's scheduler"},
    "patterns": dict.fromkeys(
        (*("abort", "adaptive", "best_depth", "death", "gradients", "layer"), *("snapshot", "stages", "unequal")),
        TOO_LONG,
    ),
    "soak": {"product": TOO_LONG, "memory": TOO_LONG},
    "tensor": {"mma": BY_A_PROGRAM, "hgemv": "its weights take ten seconds to draw"},
}
# What gpubench may say of a case that it skips on AMD: each is a limit of CuPy on ROCm, of AMD's GPUs, or a library
# that no wheel has.
REASONS = re.compile(
    "CuPy on ROCm does not (support|bind|register)|CuPy does not support .* on amd GPUs|gfx90a does not support|"
    r"does not support matrix products in (tf32|bfloat16|float8|int8)|hipCOMP is not usable here|needs an NVIDIA GPU|"
    r"\(NVIDIA, sm_90 or newer\)|CuPy does not bind|CUDA's driver|NVIDIA's driver|cuda-bindings|needs cuBLASLt"
)

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
    assert wrong == ["0"] * 10, done.stdout + done.stderr


def test_a_step_and_a_prefill_of_a_small_model_give_the_logits_of_double_precision(environment, tmp_path):
    done = python(environment, tmp_path, str(PROGRAMS / "small_model.py"))
    errors = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(errors) == 6, done.stderr
    assert all(0 < error < 5e-3 for error in errors)


def results_of(environment, folder, name, filters):
    """Run cases of a suite in a folder of their own; return their results, by case, and what was said beside them."""
    folder.mkdir()
    words = [word for case in filters for word in ("--filter", case)]
    done = gpubench(environment, folder, "run", name, "--device", "rocm:0", "--tier", "smoke", "-o", "a.jsonl", *words)
    assert (folder / "a.jsonl").is_file(), done.stderr
    return {result.case.id: result for result in store.read_run(folder / "a.jsonl").results}, done.stderr


@pytest.mark.parametrize("name", plugins.names("suites"))
def test_every_case_of_a_suite_goes_through_or_says_what_is_missing(name, environment, tmp_path):
    """A check of times may fail while other programs use the processor: a case that failed has a second try."""
    definitions, left_out = plugins.load("suites", name).definitions, LEFT_OUT.get(name, {})
    cases = [f"{name}/{case}{'[' if definitions[case].axes else ''}" for case in definitions if case not in left_out]
    results, errors = results_of(environment, tmp_path / "first", name, cases)
    if failed := [case for case, result in results.items() if result.status not in ("ok", "skipped")]:
        again, errors = results_of(environment, tmp_path / "again", name, failed)
        results |= again
    bad = [f"{case}: {each.reason}" for case, each in results.items() if each.status not in ("ok", "skipped")]
    assert bad == [], errors[-2000:]
    assert results
    for result in results.values():
        if result.status == "skipped":
            assert REASONS.search(result.reason), result.reason
        else:
            assert "dry-run" in result.labels
            assert result.series == ()


def test_no_command_shows_a_figure_of_a_dry_run(environment, tmp_path):
    """A run of cases that are timed, and what is made of it: no text has a rate, and the gate has nothing to judge."""
    words = ("run", "bandwidth", "--device", "rocm:0", "--tier", "smoke", "--filter", "bandwidth/copy", "-o", "a.jsonl")
    on_the_host = gpubench(environment, tmp_path, *(word.replace("rocm:0", "host") for word in words[:-2])).stdout
    assert RATE.search(on_the_host)  # so a figure looks, where there is one
    shown = [gpubench(environment, tmp_path, *words)]
    shown += [gpubench(environment, tmp_path, "show", "a.jsonl")]
    for form in ("html", "md", "json", "prom", "csv"):
        gpubench(environment, tmp_path, "report", "a.jsonl", "--format", form, "-o", f"report.{form}")
        assert (tmp_path / f"report.{form}").is_file()
    texts = [done.stdout + done.stderr for done in shown]
    texts += [
        (tmp_path / f"report.{form}").read_text(encoding="utf-8") for form in ("html", "md", "json", "prom", "csv")
    ]
    assert all("dry-run" in text for text in texts[:2])
    for text in texts:
        assert not RATE.search(text)
    against = gpubench(environment, tmp_path, "compare", "a.jsonl", "a.jsonl")
    assert not RATE.search(against.stdout + against.stderr)
