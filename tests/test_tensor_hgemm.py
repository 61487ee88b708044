"""The HGEMM ladder: kernels against double precision on a grid on the host, unsupported rungs, the plan."""

import dataclasses
import re
from types import SimpleNamespace

import _grid
import _nvrtc
import instruction_mix
import pytest
from _grid import needs_compiler
from _grid_device import PAPER, bench
from _modules import shared_modules, suite_modules
from _poison import overwrite

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.effort import POINT, TIER
from gpubench.authoring.task import Stage
from gpubench.base.errors import DeviceError, Skip, WrongAnswer
from gpubench.model import Facts, Work
from gpubench.plugins.backend import KernelResources

SUITE = plugins.load("suites", "tensor")
HGEMM, RUNGS, KERNELS = suite_modules("tensor", "_hgemm", "_hgemm", "_kernels")
DATA, FORMATS, VENDOR, MAPS = shared_modules("_matrix.data", "_matrix.formats", "_matrix.vendor", "_tensor_map")


def paper():
    """Return a paper GPU of NVIDIA; g++ builds its kernels for the architecture that mma.sync needs."""
    paper = bench(SUITE, "nvidia")
    built = paper.kernel
    return SimpleNamespace(
        traits=paper.traits,
        device=paper.device,
        kernel=lambda file, name, **defines: built(file, name, __CUDA_ARCH__=900, **defines),
    )


def operands(m, n, k):
    """Return the operands of an m × n × k product in half precision on a GPU on paper."""
    paper = bench(SUITE, "nvidia")
    shape = FORMATS.Shape(m, n, k, "nt")
    return DATA.Operands(dataclasses.replace(paper, package=DATA.__package__), FORMATS.PRECISIONS["float16"], shape)


def checked(rung, product):
    """Run the rung once on overwritten results, check them, and return the notes of its build."""
    call, notes = rung.build(paper(), product.product)
    product.c.view("int8").fill(-1)
    call()
    product.check()
    return notes


SMALL = [
    (RUNGS.RUNGS["naive"], (32, 48, 40)),
    (RUNGS.RUNGS["tile"], (256, 128, 48)),
    (RUNGS.mma_rung((64, 64, 32), (2, 1), swizzled=False, stages=1, resident=1), (128, 64, 96)),
    (RUNGS.mma_rung((32, 64, 32), (2, 2), swizzled=True, stages=4, resident=1, band=2), (96, 128, 160)),
    *(
        pytest.param(
            RUNGS.mma_rung(tile, warps, swizzled=True, stages=stages, resident=1), sides, marks=pytest.mark.slow
        )
        for tile, warps, stages, sides in (
            ((64, 64, 64), (2, 1), 1, (64, 64, 128)),
            ((64, 64, 64), (1, 2), 3, (64, 128, 64)),
            ((64, 128, 32), (2, 2), 4, (320, 256, 160)),
        )
    ),
]


@needs_compiler
@pytest.mark.parametrize(("rung", "sides"), SMALL, ids=lambda value: str(getattr(value, "kernel", value)))
def test_every_element_of_a_rungs_product_is_that_of_double_precision(rung, sides):
    assert checked(rung, operands(*sides))["kernel"].startswith(rung.kernel)


@needs_compiler
@pytest.mark.slow
def test_the_rung_for_amd_gives_the_product_in_waves_of_64_lanes():
    product, base = operands(256, 128, 96), bench(SUITE)
    traits = dataclasses.replace(base.traits, features=frozenset({"matrix"}), warp=64)
    wave = SimpleNamespace(
        traits=traits, kernel=lambda file, name, **defines: base.kernel(file, name, WARP=64, **defines)
    )
    call, _ = RUNGS.RUNGS["mfma"].build(wave, product.product)
    product.c.view("int8").fill(-1)
    call()
    assert 0 < product.check()["error"].value < 2**-11


@needs_compiler
def test_a_tile_that_is_left_out_fails_the_check():
    product = operands(256, 128, 48)
    rung = RUNGS.RUNGS["tile"]
    call, _ = dataclasses.replace(rung, tile=(256, 128)).build(paper(), product.product)
    product.c.view("int8").fill(-1)
    call()
    with pytest.raises(WrongAnswer, match="not written"):
        product.check()


def device(vendor, arch, *features):
    """Return a bench that has traits alone."""
    traits = {
        "vendor": vendor,
        "arch": arch,
        "features": frozenset(features),
        "warp": 32,
        "max_shared_bytes": 99 * 1024,
    }
    return SimpleNamespace(traits=SimpleNamespace(**traits))


WGMMA = "needs wgmma, an instruction of sm_90 (Hopper) alone, not of"


@pytest.mark.parametrize(
    ("needs", "bench", "reason"),
    [
        ("matrix", device("nvidia", "sm_75"), "needs the matrix instructions of sm_80 or newer, not sm_75"),
        ("wmma", device("amd", "gfx942", "matrix"), "needs the matrix instructions of sm_80 or newer, not gfx942"),
        ("bulk", device("nvidia", "sm_80", "matrix"), "needs the bulk copies of sm_90 or newer, not sm_80"),
        ("bulk", device("nvidia", "sm_100", "matrix", "bulk_copy"), ""),
        ("wgmma", device("nvidia", "sm_100", "matrix"), f"{WGMMA} sm_100"),
        ("mfma", device("amd", "gfx906"), "needs the matrix instructions of gfx90a or newer, not gfx906"),
        ("matrix", device("nvidia", "sm_80", "matrix"), ""),
        ("wgmma", device("nvidia", "sm_90", "matrix", "wgmma"), ""),
        ("tcgen05", device("nvidia", "sm_120"), "needs tcgen05, instructions of sm_100 to sm_110, not of sm_120"),
        ("tcgen05", device("nvidia", "sm_103", "tcgen05"), ""),
        ("mfma", device("amd", "gfx90a", "matrix"), ""),
        ("", device("amd", "gfx906"), ""),
    ],
)
def test_the_reason_for_an_unsupported_rung_names_the_missing_feature(needs, bench, reason):
    assert RUNGS.unsupported_reason(bench, needs) == reason


def test_an_unsupported_rung_is_skipped_before_its_kernel_is_compiled():
    with pytest.raises(Skip, match=r"an instruction of sm_90 \(Hopper\) alone"):
        RUNGS.RUNGS["wgmma"].build(device("nvidia", "sm_80", "matrix"), SimpleNamespace(shape=FORMATS.Shape(8, 8, 8)))


def test_a_rung_whose_tiles_exceed_the_shared_memory_of_a_block_is_skipped():
    rtx = device("nvidia", "sm_120", "matrix", "bulk_copy")
    with pytest.raises(Skip, match="bulk needs 197632 bytes of shared memory per block, not 101376"):
        RUNGS.RUNGS["bulk"].build(rtx, SimpleNamespace(shape=FORMATS.Shape(8, 8, 8)))


class CompileError(Exception):
    """The error that CuPy raises when the compiler fails."""


MISSING_HEADER = 'could not open source file "cuda_fp16.h"'


@pytest.mark.parametrize(
    ("header", "message", "expected"),
    [(None, "", Skip), ("/x/mma.h", MISSING_HEADER, Skip), ("/x/mma.h", "a syntax error", CompileError)],
)
def test_wmma_without_its_headers_is_skipped_with_the_command_that_gets_them(monkeypatch, header, message, expected):
    def kernel(file, name, **defines):
        assert defines == {"WMMA_HEADER": "</x/mma.h>"}
        raise CompileError(message)

    monkeypatch.setattr(RUNGS, "found_header", lambda name: header)
    target = device("nvidia", "sm_90", "matrix")
    target.kernel = kernel
    target.xp = SimpleNamespace(cuda=SimpleNamespace(compiler=SimpleNamespace(CompileException=CompileError)))
    with pytest.raises(expected, match="pip install nvidia-cuda-crt" if expected is Skip else "syntax"):
        RUNGS.RUNGS["wmma"].build(target, SimpleNamespace(shape=FORMATS.Shape(128, 128, 128)))


def test_a_header_is_found_in_the_toolkit_that_the_environment_names(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "some_header.h").touch()
    assert RUNGS.found_header("some_header.h") == tmp_path / "include" / "some_header.h"
    assert RUNGS.found_header("no_such_header.h") is None


def test_the_notes_have_the_resources_and_occupancy_of_a_kernel():
    kernel = SimpleNamespace(resources=lambda threads, shared_bytes: KernelResources(168, 64, 8, 1))
    notes = KERNELS.resource_notes(device("nvidia", "sm_90"), kernel, 384, 230_400)
    assert notes["resources"] == "168 registers, 230464 bytes of shared memory, 8 bytes of local memory"
    assert notes["occupancy"] == "1 × 384 threads per compute unit: 12 warps"


def test_a_kernels_shared_memory_fits_into_a_block_of_hopper():
    static = {"hgemm_wgmma.cu": 256, "hgemm_mma.cu": 256}  # barriers
    for rung in RUNGS.RUNGS.values():
        assert rung.shared_bytes + static.get(rung.file, 0) <= 227 * 1024, rung.kernel


@pytest.mark.parametrize(
    ("arch", "tier", "rungs"),
    [
        ("sm_90", "quick", ("mma", "async", "bulk", "wgmma", "vendor")),
        ("sm_80", "full", ("naive", "tile", "wmma", "mma", "swizzled", "async", "bulk", "wgmma", "vendor")),
        ("gfx942", "quick", ("mfma", "vendor")),
        ("gfx942", "full", ("naive", "tile", "mfma", "vendor")),
    ],
)
def test_the_rungs_depend_on_the_architecture_and_tier(arch, tier, rungs):
    target = Target(Facts((PAPER,)), dataclasses.replace(PAPER, arch=arch), tier)
    listed = [dict(case.params)["rung"] for case in SUITE.cases(target) if case.name == "hgemm"]
    assert tuple(dict.fromkeys(listed)) == rungs


@pytest.mark.parametrize(("tier", "sizes"), [("quick", {4096}), ("full", {1024, 2048, 4096, 8192, 16384})])
def test_quick_has_one_size_and_full_has_five(tier, sizes):
    cases = [dict(case.params) for case in SUITE.cases(Target(Facts((PAPER,)), PAPER, tier)) if case.name == "hgemm"]
    assert {params["n"] for params in cases if params["rung"] == "wgmma"} == sizes


def test_one_thread_per_element_is_left_out_where_it_takes_too_long():
    cases = [dict(case.params) for case in SUITE.cases(Target(Facts((PAPER,)), PAPER, "full")) if case.name == "hgemm"]
    assert max(params["n"] for params in cases if params["rung"] == "naive") == 4096
    assert max(params["n"] for params in cases if params["rung"] == "tile") == 16384


class RecordingEncoder:
    """Replaces the driver's function: keeps its arguments and returns a status."""

    def __init__(self, status):
        self.status = status

    def __call__(self, place, kind, rank, address, sizes, strides, box, steps, *rest):
        self.place, self.numbers = place.value, (kind, rank, address.value, *sizes, *strides, *box, *steps, *rest)
        return self.status


def test_a_tensor_map_is_aligned_for_the_driver_and_a_refused_one_names_its_error(monkeypatch):
    encoder = RecordingEncoder(0)
    monkeypatch.setattr(MAPS, "_encode", lambda: encoder)
    matrix = SimpleNamespace(data=SimpleNamespace(ptr=4096))
    tensor_map = MAPS.tensor_map(matrix, rows=256, columns=512, box_rows=128, box_columns=64)
    assert (tensor_map.size, tensor_map.nbytes, tensor_map.ctypes.data) == (1, 128, encoder.place)
    assert encoder.place % 64 == 0
    assert encoder.numbers == (6, 2, 4096, 512, 256, 1024, 64, 128, 1, 1, 0, 3, 2, 0)
    monkeypatch.setattr(MAPS, "_encode", lambda: RecordingEncoder(1))
    with pytest.raises(DeviceError, match="256 × 512 failed with CUDA error 1"):
        MAPS.tensor_map(SimpleNamespace(data=SimpleNamespace(ptr=8)), 256, 512, 128, 64)


def test_alternating_calls_give_the_share_of_the_vendors_rate():
    calls = []

    def own():
        calls.append("own")

    def vendor():
        calls.append("vendor")

    def time(call, count, gated, lead):
        lead()
        call()
        return SimpleNamespace(device=({own: 0.004, vendor: 0.003}[call],))

    device = SimpleNamespace(time=time, synchronize=lambda: calls.append("wait"))
    probe = HGEMM.paired(SimpleNamespace(device=device), own, vendor)
    assert probe()["of_best"].value == pytest.approx(75)
    assert calls == ["vendor", "wait", "own", "vendor", "vendor", "own"]


def proposals(*milliseconds):
    """Return proposed algorithms that take these times, the device on which they do, and the calls that it timed."""
    timed = []
    algorithms = [
        VENDOR.ProductCall(lambda place=place: place, {"algorithm": str(place)}) for place in range(len(milliseconds))
    ]

    def time(call, count, gated, lead):
        timed.append(call())
        first = 0.5 if len(timed) <= len(milliseconds) else 0.0  # the first round is slower
        return SimpleNamespace(device=((milliseconds[lead()] + first) * 1e-3,))

    return algorithms, SimpleNamespace(device=SimpleNamespace(time=time)), timed


def test_the_vendors_product_is_the_fastest_of_eight_proposals_each_timed_in_turn(monkeypatch):
    algorithms, of, timed = proposals(0.3, 0.19, 0.2)
    asked = []
    monkeypatch.setattr(HGEMM, "heuristics", lambda bench, product, most: asked.append(most) or algorithms)
    best = HGEMM.best_by_vendor(of, None)
    assert best.call is algorithms[1].call
    assert best.notes == {"algorithm": "1", "proposal": "number 2 of 3, the fastest"}
    assert (asked, timed) == ([8], [0, 1, 2] * 3)


def test_up_to_4096_a_sample_follows_a_rest_so_that_no_power_cap_makes_fast_kernels_alike(monkeypatch):
    product = SimpleNamespace(call=lambda: None, notes={})
    monkeypatch.setattr(HGEMM, "best_by_vendor", lambda bench, product_: product)
    of_size = SimpleNamespace(
        stage=lambda call, effort: Stage(call, Work(flops=1.0), "flops", effort=effort),
        product=None, check=dict, poison=lambda: None, notes={},
    )  # fmt: skip
    monkeypatch.setattr(HGEMM, "Operands", lambda bench, precision, shape: of_size)
    target = SimpleNamespace(target=SimpleNamespace(tier="quick"))
    stages = {n: HGEMM.hgemm(target, "vendor", n).stages[""] for n in (1024, 4096, 8192)}
    assert {n: (stage.rest_s, stage.effort) for n, stage in stages.items()} == {
        1024: (0.01, TIER),
        4096: (0.01, TIER),
        8192: (0.0, POINT),
    }
    cases = [case for case in SUITE.cases(Target(Facts((PAPER,)), PAPER, "quick")) if case.name == "hgemm"]
    assert {case.version for case in cases} == {2}


@needs_compiler
def test_a_case_builds_runs_and_checks_itself_on_a_gpu_on_paper():
    task = HGEMM.hgemm(bench(SUITE), rung="tile", n=128)
    stage = task.stages[""]
    overwrite(task)
    stage.call()
    assert 0 < task.check()["error"].value < 2**-11
    assert stage.probe()["of_best"].value > 0
    assert task.check()["error"].value > 0  # the vendor's product was written to another place
    assert (stage.work.flops, stage.quantity, stage.limit) == (2 * 128**3, "flops", "tensor.float16")
    assert task.notes["kernel"] == "tile of hgemm.cu, tiles of 128 × 128"


BUILDS = [(name, arch) for name in RUNGS.RUNGS for arch in ("sm_80", "sm_90a") if name not in ("mfma", "wmma")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch"), BUILDS)
def test_a_rung_compiles_for_nvidia_and_spills_nothing(name, arch):
    if _nvrtc.library() is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    rung = RUNGS.RUNGS[name]
    defines = [f"-D{key}={value}" for key, value in rung.defines.items()]
    options = [f"--gpu-architecture={arch}", "--ptxas-options=-v", *defines]
    status, log = _nvrtc.compiled(_grid.source(f"tensor/{rung.file}"), options)
    assert status == 0, log
    assert all(int(spilled) == 0 for spilled in re.findall(r"(\d+) bytes spill", log)), log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mma", {"HMMA": 32, "LDSM": 12, "LDG": 4, "STS.128": 4}),
        ("swizzled", {"HMMA": 32, "LDSM": 12, "LDG": 4, "STS.128": 4}),
        ("async", {"HMMA": 64, "LDSM": 16, "LDGSTS": 6, "BAR": 1}),
        ("bulk", {"HMMA": 128, "LDSM": 32, "LDGSTS": 0, "BAR": 0}),
        ("wgmma", {"HGMMA": 4, "LDSM": 0, "BAR": 0}),
    ],
)
def test_the_loop_of_a_rung_has_its_instructions_and_no_fence_or_spill(name, wanted):
    if _nvrtc.library() is None or not _nvrtc.disassembler():
        pytest.skip("no NVRTC or disassembler here: pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm")
    loop = instruction_mix.bound_of(name).loop
    assert {opcode: loop[opcode] for opcode in wanted} == wanted
    assert not {"MEMBAR", "ERRBAR", "CCTL", "LDL", "STL"} & set(loop)
