"""Every kernel of every suite compiles for AMD's GPUs, and the instructions are those that the measurement means.

With AMD's own hipRTC, in a child process, and no GPU: nothing runs, and nothing is said of how fast it would be. `bash
ci/rocm.sh` fetches the compiler; without it Debian 12's older one is asked, for gfx90a alone.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import _hiprtc
import pytest
from _hiprtc import Compiled, Instruction, loops
from _modules import suite_module

ROOT = Path(__file__).parent.parent
PRELUDE = ROOT / "suites" / "prelude.cuh"
ROOMS = (ROOT / "suites", ROOT / "gpubench/devices/backends", ROOT / "gpubench/authoring")
FILES = {str(path.relative_to(room)): path for room in ROOMS for path in sorted(room.rglob("*.cu"))}

GEMV = [{"WEIGHTS": kind, "TEAM": 64, "SHARE": 2, "AHEAD": 2} for kind in range(5)]
SKINNY = [
    {"WEIGHTS": kind, "TILES": tiles, "PANELS": 2, "DOWN": 1 if tiles == 1 else 4, "ACROSS": across, "AHEAD": 1}
    for kind in range(1, 5)
    for tiles, across in ((1, 8), (2, 1), (4, 1))
]
INSTRUCTIONS = suite_module("tensor", "_mma")
SCALAR = [
    {"OPERATION": f"fma_{dtype}", "INDEPENDENT": chains}
    for dtype in ("float64", "float32", "float16x2")
    for chains in (1, 8)
]
MATRIX = [
    {**INSTRUCTIONS.amd_defines(form), "INDEPENDENT": chains, "THREADS": 1024}
    for form in INSTRUCTIONS.MFMA.values()
    for chains in (1, 4)
    if form.since == INSTRUCTIONS._CDNA2 and not form.own
]
NEWER = [
    (arch, {**INSTRUCTIONS.amd_defines(form), "INDEPENDENT": 4, "THREADS": 1024})
    for arch in map(INSTRUCTIONS.gb.Architecture.parse, _hiprtc.ARCHS)
    for form in INSTRUCTIONS.MFMA.values()
    if (form.since > INSTRUCTIONS._CDNA2 or form.own) and form.since <= arch
    if not form.own or form.own in arch.features
]
ROWS = [
    *({"OPERATOR": number, "HALVES": 1, "COLS": 4096, "THREADS": 128, "LANES": 64} for number in range(8)),
    *({"OPERATOR": number, "HALVES": 0, "COLS": 32768, "THREADS": 1024, "LANES": 64} for number in (4, 6, 7)),
]
GATED = {"WEIGHTS": 1, "TEAM": 128, "SHARE": 2, "AHEAD": 4, "GATED": 1}
GATED_SKINNY = {"WEIGHTS": 4, "TILES": 1, "PANELS": 2, "DOWN": 1, "ACROSS": 8, "AHEAD": 2, "GATED": 1}
# The macros with which a file is built; a file that is not listed is built without macros.
BUILDS: dict[str, list[dict[str, object]]] = {
    "stream.cu": [*({"REAL": "float", "WIDTH": width} for width in (16, 8, 4)), {"REAL": "double", "WIDTH": 16}],
    "bandwidth/access.cu": [{"WRITES": 0}, {"WRITES": 1}],
    "gemv.cu": [*GEMV, GATED],
    "compilers/rows.cu": list(ROWS),
    "compilers/layout.cu": [{"WHAT": variant, "LOOP": 4} for variant in (0, 1, 2)],
    "copies.cu": [{}, {"FLIGHT": 1}],
    "ipc/signals.cu": [{}, {"ADDS": 1}],
    "skinny.cu": [*SKINNY, GATED_SKINNY],
    "inference/attention.cu": [
        {"DIM": 128, "GROUP": 4, "PAGE": 0},
        {"DIM": 128, "GROUP": 8, "PAGE": 64},
        {"DIM": 128, "GROUP": 1, "PAGE": 16},
        {"DIM": 64, "GROUP": 2, "PAGE": 0},
        {"DIM": 128, "GROUP": 4, "PAGE": 0, "ROTARY": 1, "THREADS": 512},
    ],
    "inference/chain.cu": [{}, {"VECTORS": 4, "CENTRED": 1}],
    "inference/experts.cu": [{"EXPERTS": 64, "ACTIVE": 8}],
    "tensor/instructions.cu": list(SCALAR),
    "tensor/instructions_mma.cu": list(MATRIX),
}
ALL = [(file, build) for file in FILES for build in BUILDS.get(file, [{}])]
LATENCY = [file for file in FILES if file.startswith("latency/")]
MEMORY = ("global_", "flat_", "buffer_load", "buffer_store", "scratch_", "ds_", "s_load", "s_buffer_load")


@cache
def build(file: str, macros: tuple[tuple[str, object], ...], arch: str) -> Compiled:
    """Return a kernel's file compiled with these macros; skips if hipRTC is missing or too old."""
    if arch not in _hiprtc.archs():
        pytest.skip(_hiprtc.HOW if not _hiprtc.version() else f"hipRTC {_hiprtc.version()} is older than {arch}")
    lines = "".join(f"#define {name} {value}\n" for name, value in macros)
    prelude = PRELUDE.read_text() if PRELUDE.parent in FILES[file].parents else ""
    return _hiprtc.built(lines + prelude + FILES[file].read_text(), arch)


def kernels(file: str, arch: str, **macros: object) -> dict[str, list[Instruction]]:
    """Compile the file for `arch` and return the instructions of each kernel."""
    answer = build(file, tuple(macros.items()), arch)
    assert answer.status == 0, answer.log
    return answer.kernels


def counted(instructions: list[Instruction]) -> Counter[str]:
    """Return the number of instructions by name that access memory or multiply matrices."""
    return Counter(instruction.name for instruction in instructions if instruction.name.startswith((*MEMORY, "v_mfma")))


def timed(instructions: list[Instruction]) -> list[list[Instruction]]:
    """Return the loops between two readings of the clock, or all loops of a kernel without readings."""
    readings = [
        instruction.address for instruction in instructions if instruction.name in ("s_memtime", "s_memrealtime")
    ]
    inner = loops(instructions)
    return [loop for loop in inner if loop[0].address > readings[0]] if readings else inner


arch_of_amd = pytest.mark.parametrize("arch", _hiprtc.ARCHS)
pytestmark = pytest.mark.slow


def _affixes(name: str) -> set[str]:
    """Return every text before and after an underscore of a name."""
    parts = name.split("_")
    return {"_".join(part) for place in range(1, len(parts)) for part in (parts[:place], parts[place:])}


@arch_of_amd
@pytest.mark.parametrize(("file", "macros"), ALL)
def test_every_kernel_of_every_suite_compiles_for_amd(file: str, macros: dict[str, object], arch: str) -> None:
    code = code_of(file)
    written = set(re.findall(r'extern "C" __global__ void (\w+)\(', code))
    families = set(re.findall(r"\bKERNELS\((\w+),", code))  # a macro defines several kernels of each family
    compiled = kernels(file, arch, **macros)
    assert written | families
    assert written - NVIDIA <= set(compiled)
    parts = {part for name in compiled for part in (name, *_affixes(name))}
    assert families <= parts


# kernels that need sm_80 or sm_90
NVIDIA = {"cluster", "cluster_barrier", "cluster_read", "async_copy", "bulk_copy", "claim_all", "release_all"}
NVIDIA |= {"arrange_x", "skinny_wgmma", "half_products", "attend_latent", "to_eight"}
NVIDIA |= {"wmma", "mma", "bulk", "tcgen05", "tcgen05_chains", "wgmma", "wgmma_chains"}  # of tensor


def code_of(file: str) -> str:
    """Return the source without its macros and launch bounds."""
    text = re.sub(r"^#define.*(?<=\\)\n(.*(?<=\\)\n)*.*", "", FILES[file].read_text(), flags=re.MULTILINE)
    return re.sub(r"\s+", " ", re.sub(r"__(launch_bounds|cluster_dims)__\([^)]*\)", "", text))


@arch_of_amd
@pytest.mark.parametrize(("file", "macros"), ALL)
def test_no_kernel_keeps_values_in_scratch_memory(file: str, macros: dict[str, object], arch: str) -> None:
    for name, instructions in kernels(file, arch, **macros).items():
        names = counted(instructions)  # buffer_wbl2 and buffer_inv are fences
        spilled = [name for name in names if name.startswith(("scratch_", "buffer_load", "buffer_store"))]
        assert not spilled, f"{name} keeps values in memory: {spilled}"


@arch_of_amd
@pytest.mark.parametrize("file", [*LATENCY, "p2p/remote.cu"])
def test_no_chain_of_loads_uses_the_scalar_cache(file: str, arch: str) -> None:
    """The compiler may load an address that a whole wave shares by s_load, which reads through another cache."""
    for name, instructions in kernels(file, arch).items():
        # the scalar load is intended here: constant memory, and kernel arguments
        if name in ("constant", "atomic_shared"):
            continue
        for loop in timed(instructions):
            if any(
                instruction.name.startswith(("global_load", "global_atomic", "ds_read", "ds_add"))
                for instruction in loop
            ):
                assert not [instruction.name for instruction in loop if instruction.name.startswith("s_load")], name


CHAINS = {
    ("latency/chase.cu", "chase"): "global_load_dwordx2",
    ("latency/chase.cu", "chase_l2"): "global_load_dwordx2",
    ("latency/chase.cu", "single"): "global_load_dwordx2",
    ("latency/near.cu", "shared"): "ds_read_b32",
    ("latency/near.cu", "conflict"): "ds_read_b32",
    ("latency/near.cu", "constant"): "s_load_dword",  # AMD's constant memory is read through the scalar cache
    ("latency/near.cu", "atomic"): "global_atomic_add_x2",
    ("latency/near.cu", "atomic_shared"): "ds_add_rtn_u32",
    ("latency/units.cu", "slices_load"): "global_load_dwordx2",
    ("latency/units.cu", "slices_atomic"): "global_atomic_add_x2",
    ("p2p/remote.cu", "remote_loads"): "global_load_dwordx2",
    ("p2p/remote.cu", "remote_adds"): "global_atomic_add",
}


@arch_of_amd
@pytest.mark.parametrize(("file", "kernel"), CHAINS)
def test_the_timed_loop_of_a_chain_is_that_instruction_and_no_other_access(file: str, kernel: str, arch: str) -> None:
    wanted = CHAINS[file, kernel]
    counts = [counted(loop) for loop in timed(kernels(file, arch)[kernel])]
    chains = [loop for loop in counts if wanted in loop]
    assert chains
    assert min(len(loop) for loop in chains) == 1  # the loops beside it store results
    assert not any("flat" in name for loop in chains for name in loop)


STREAMS = ("copy", "scale", "add", "triad", "read", "dot")


@arch_of_amd
@pytest.mark.parametrize(("width", "load"), [(16, "dwordx4"), (8, "dwordx2"), (4, "dword")])
def test_a_stream_kernel_moves_vectors_of_its_width_once(width: int, load: str, arch: str) -> None:
    compiled = kernels("stream.cu", arch, REAL="float", WIDTH=width)
    for name in STREAMS:
        every = [counted(loop) for loop in loops(compiled[name])]
        streaming = [loop for loop in every if any("global_load" in name for name in loop)]
        assert streaming, name
        for loop in streaming:
            arrays = 2 if name in ("add", "triad", "dot") else 1
            assert {name for name in loop if "load" in name} == {f"global_load_{load}"}, (name, loop)
            assert loop[f"global_load_{load}"] in (arrays, 4 * arrays), (name, loop)
    stores = [counted(loop) for loop in loops(compiled["write"])]
    assert {name for loop in stores for name in loop} == {f"global_store_{load}"}


WIDE = [
    ("bandwidth/access.cu", (("WRITES", 0),), "random_16_read"),
    ("bandwidth/cache.cu", (), "cached_read"),
    ("bandwidth/cache.cu", (), "cached_copy"),
    ("bandwidth/engines.cu", (), "load_store_resident"),
    ("copies.cu", (), "copy"),
    *(("gemv.cu", tuple(macros.items()), "gemv") for macros in GEMV[:3]),
]


@arch_of_amd
@pytest.mark.parametrize(("file", "macros", "kernel"), WIDE)
def test_a_kernel_that_streams_sixteen_bytes_per_lane_loads_them_with_one_instruction(
    file: str, macros: tuple[tuple[str, object], ...], kernel: str, arch: str
) -> None:
    for loop in map(counted, loops(kernels(file, arch, **dict(macros))[kernel])):
        loads = {name for name in loop if "load" in name and not name.startswith("s_load")}
        assert loads <= {"global_load_dwordx4"}, loop


@arch_of_amd
@pytest.mark.parametrize(("width", "names"), [(4, "b32"), (8, "b64"), (16, "b128")])
def test_shared_memory_is_read_in_units_of_the_kernels_width(width: int, names: str, arch: str) -> None:
    compiled = kernels("bandwidth/cache.cu", arch)
    for access, start in (("read", "ds_read"), ("write", "ds_write")):
        passes = [counted(loop) for loop in timed(compiled[f"shared_{access}_{width}"])]
        assert passes
        for loop in passes:
            assert all(name.startswith(start) and name.endswith(names) for name in loop), loop


@arch_of_amd
@pytest.mark.parametrize("macros", SKINNY)
def test_the_tensor_kernels_multiply_by_matrix_instructions(macros: dict[str, object], arch: str) -> None:
    counts = counted(kernels("skinny.cu", arch, **macros)["skinny"])
    wanted = "bf16" if macros["WEIGHTS"] == 2 else "f16"
    multiplies = {name: count for name, count in counts.items() if name.startswith("v_mfma_f32_16x16x16")}
    assert multiplies
    assert all(re.search(rf"_?(?<!b){wanted}(_1k)?$", name) for name in multiplies), multiplies
    assert any(name.startswith("global_load_dwordx4") for name in counts)
    if int(str(macros["TILES"])) > 1:  # X is staged in shared memory
        assert any(name.startswith("ds_read_b128") for name in counts)


@arch_of_amd
def test_the_ladders_rung_for_amd_multiplies_by_matrix_instructions_of_32_by_32(arch: str) -> None:
    counts = counted(kernels("tensor/hgemm_mfma.cu", arch)["mfma"])
    multiplies = {name: count for name, count in counts.items() if name.startswith("v_mfma")}
    steps = 2 if arch == "gfx950" else 4  # of 16 or 8 inner elements, in each of the 2 × 2 tiles of a wave
    assert sum(multiplies.values()) == 4 * steps
    assert all(re.fullmatch(rf"v_mfma_f32_32x32x{32 // steps}_?f16(_e64)?", name) for name in multiplies), multiplies
    assert any(name.startswith(("ds_read_b64", "ds_read2_b64", "ds_read_b128")) for name in counts), counts


@arch_of_amd
@pytest.mark.parametrize("macros", SCALAR)
def test_the_timed_loop_of_multiply_adds_has_one_for_each_step_and_nothing_between(
    macros: dict[str, object], arch: str
) -> None:
    chains = timed(kernels("tensor/instructions.cu", arch, **macros)["chains"])
    counts = max(
        (Counter(instruction.name for instruction in loop if instruction.name.startswith("v_")) for loop in chains),
        key=Counter.total,
    )
    steps = sum(count * (2 if "pk_fma_f32" in name else 1) for name, count in counts.items() if "fma" in name)
    assert (steps, sum(count for name, count in counts.items() if "fma" not in name)) == (512, 0)


@arch_of_amd
@pytest.mark.parametrize("macros", MATRIX)
def test_the_timed_loop_of_matrix_instructions_has_one_for_each_step(macros: dict[str, object], arch: str) -> None:
    chains = timed(kernels("tensor/instructions_mma.cu", arch, **macros)["matrix_chains"])
    wanted = str(macros["INSTRUCTION"]).replace("_", "")
    for loop in chains:
        counts = Counter(instruction.name for instruction in loop if instruction.name.startswith("v_"))
        if any("mfma" in name for name in counts):
            assert {name.removeprefix("v_").removesuffix("_e64").replace("_", "") for name in counts} <= {
                wanted,
                wanted.removesuffix("1k"),
            }
            assert counts.total() == 64


@pytest.mark.parametrize(("arch", "macros"), NEWER, ids=lambda value: str(getattr(value, "name", value)))
def test_a_matrix_instruction_of_newer_gpus_is_one_instruction_for_each_step(arch, macros: dict[str, object]) -> None:
    compiled = kernels("tensor/instructions_mma.cu", arch.name, **macros)["matrix_chains"]
    multiplies = [counts for loop in timed(compiled)
                  if (counts := Counter(line.name for line in loop if "mfma" in line.name))]  # fmt: skip
    wanted = str(macros["INSTRUCTION"]).replace("_", "").replace("scale", "")
    assert [(len(counts), counts.total()) for counts in multiplies] == [(1, 64)]
    (name,) = multiplies[0]
    assert name.removeprefix("v_").removesuffix("_e64").replace("_", "") == wanted


@arch_of_amd
def test_a_wave_is_64_lanes_wide_and_a_shuffle_crosses_it(arch: str) -> None:
    """A shuffle by 32 lanes is one exchange of the wave, not of two warps."""
    source = PRELUDE.read_text() + (
        'extern "C" __global__ void across(u32* out) { out[threadIdx.x] = gb_shuffle_xor(out[threadIdx.x], 32); }'
    )
    if arch not in _hiprtc.archs():
        pytest.skip(_hiprtc.HOW)
    answer = _hiprtc.built(source, arch)
    assert answer.status == 0, answer.log
    names = {instruction.name for instruction in answer.kernels["across"]}
    assert names & {"ds_bpermute_b32", "v_permlane32_swap_b32_e32", "v_permlane32_swap_b32"}
