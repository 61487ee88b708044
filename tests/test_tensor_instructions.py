"""Single instructions without a GPU: results of chains, layouts of fragments, and compilation."""

import dataclasses
import re
from pathlib import Path

import _grid
import _grid_device
import _nvrtc
import _parade
import numpy as np
import pytest
from _earlier import expect_found
from _modules import suite_modules
from _poison import overwrite

from gpubench import plugins, stats
from gpubench.analysis.summary import Summary
from gpubench.api.suite import Case, Work, WrongAnswer
from gpubench.knowledge import hardware
from gpubench.model import LIMITS, store
from gpubench.plugins.backend import KernelResources

SUITE = plugins.load("suites", "tensor")
SCALAR, MMA, WGMMA, FRAGMENTS, CHAINS = suite_modules(
    "tensor", "_instructions", "_mma", "_wgmma", "_fragments", "_chains"
)


def step(operation, x, k, i):
    """Compute one step of a chain of integers as the kernel's comment describes it."""
    a, b, c = (int(number) for number in k)
    plus = c if i % 2 else b
    if operation == "multiply_add":
        return (a * x + plus) % 2**32
    first, second = (b, c) if i % 2 else (a, b)
    if operation == "logic":
        return x ^ (first & second)
    by = first % 32
    return (x << by | x >> (32 - by)) % 2**32 if by else x


def number(code, bits, mantissa, bias):
    """Return the value of a code of a small floating-point format."""
    fraction, exponent = code % 2**mantissa, code % 2 ** (bits - 1) >> mantissa
    return (-1) ** (code >> bits - 1) * (1 + fraction / 2**mantissa) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize(
    ("dtype", "mantissa", "bias"), [("float8_e4m3", 3, 7), ("float6_e2m3", 3, 1), ("float4_e2m1", 1, 1)]
)
def test_the_operands_of_narrow_formats_are_3_and_4_in_every_element_and_the_peak_is_known(dtype, mantissa, bias):
    _, bits, codes = MMA._NARROW[dtype]
    assert [number(code, bits, mantissa, bias) for code in codes] == [3, 4, -4]
    words = MMA._narrow_words(dtype, codes[2])
    whole = int.from_bytes(np.ascontiguousarray(words[:, 5]).tobytes(), "little")
    assert [whole >> bits * place & 2**bits - 1 for place in range(33)] == [codes[2]] * 32 + [0]
    assert CHAINS.matrix_limit(dtype) in (*LIMITS, "")


@pytest.mark.parametrize("card", ["mi300x", "mi355x"])
def test_the_rate_that_an_instruction_of_amd_is_planned_with_is_the_one_of_the_table(card):
    device = _parade.facts_of(card).devices[0]
    fastest = {}
    for form in MMA.MFMA.values():
        if form.since <= device.architecture and (not form.own or form.own in device.architecture.features):
            limit = CHAINS.matrix_limit(form.dtype)
            fastest[limit] = max(fastest.get(limit, 0), form.rate * CHAINS.SCHEDULERS)
    rates = {limit: rate.value for limit in fastest if (rate := hardware.per_clock(device, limit))}
    assert rates == {limit: fastest[limit] for limit in rates}
    assert len(rates) == {"mi300x": 4, "mi355x": 5}[card]


@pytest.mark.parametrize("operation", list(SCALAR.INTEGER))
@pytest.mark.parametrize("steps", [2, 64, 514])
def test_the_results_of_integer_chains_are_predicted_exactly(operation, steps):
    rng = np.random.default_rng(steps)
    begin, k = rng.integers(2**32, size=(2, 4), dtype=np.uint32), rng.integers(1, 2**32, size=3, dtype=np.uint32)
    expected = begin.astype(object)
    for i in [*range(steps), 0]:
        expected = np.vectorize(lambda x, i=i: step(operation, int(x), k, i), otypes=[object])(expected)
    results = SCALAR.results_of(operation, "uint32", begin, k, steps)
    assert results.dtype == np.uint32
    assert (results == expected.astype(np.uint32)).all()


@pytest.mark.parametrize(("storage", "pair"), [("float16", 0x3C003C00), ("bfloat16", 0x3F803F80), ("float32", 1.0)])
def test_two_halves_are_packed_into_a_word(storage, pair):
    assert (SCALAR.packed(np.ones((2, 3), int), storage) == pair).all()


def test_a_thread_s_word_depends_on_every_bit_of_every_chain():
    values = np.arange(12.0).reshape(3, 4)
    words = SCALAR.folded(values)
    assert words.shape == (4,)
    for chain, lane in np.ndindex(values.shape):
        changed = values.copy()
        changed.view(np.uint64)[chain, lane] ^= 1
        assert np.flatnonzero(SCALAR.folded(changed) != words).tolist() == [lane]


def element_of(matrix, word, lane, place, a_word):
    """Return the element of A that PTX places there: row lane / 4, plus 8 in odd registers; then along a row."""
    blocks = len(matrix) // 8
    row = lane // 4 + 8 * (word % blocks)
    return matrix[row, word // blocks * 4 * a_word + lane % 4 * a_word + place]


@pytest.mark.parametrize(("rows", "cols", "dtype"), [(16, 16, "float16"), (16, 8, "tf32"), (8, 32, "int8")])
def test_a_lane_holds_the_elements_of_its_row_and_columns(rows, cols, dtype):
    matrix = np.arange(rows * cols).reshape(rows, cols) % 125
    words = FRAGMENTS.operand_words(FRAGMENTS.encoded(matrix, dtype), 4)
    assert words.shape == (rows * cols * FRAGMENTS.encoded(matrix, dtype).itemsize // 128, 32)
    storage = FRAGMENTS.encoded(matrix, dtype).dtype
    for word, lane in np.ndindex(words.shape):
        held = np.frombuffer(words[word, lane].tobytes(), storage)
        expected = [element_of(matrix, word, lane, place, held.size) for place in range(held.size)]
        assert held.tolist() == expected


def test_sums_lie_two_columns_a_lane_and_eight_rows_apart():
    sums = np.arange(16 * 16).reshape(16, 16)
    words = FRAGMENTS.sum_words(sums.astype(np.float32))
    for word, lane in np.ndindex(words.shape):
        row, column = lane // 4 + 8 * (word // 2 % 2), 8 * (word // 4) + 2 * (lane % 4) + word % 2
        assert words[word, lane] == sums[row, column]
    halves = FRAGMENTS.sum_words(sums.astype(np.float16))
    assert halves.shape == (4, 32)
    assert halves[1, 5].tobytes() == sums[9, 2:4].astype(np.float16).tobytes()


def test_the_swizzle_moves_chunks_of_sixteen_bytes_by_the_row():
    matrix = np.arange(16 * 64, dtype=np.uint16).reshape(16, 64)
    image = FRAGMENTS.swizzled(matrix).view(np.uint16).reshape(16, 8, 8)
    for row, chunk in np.ndindex(16, 8):
        assert (image[row, chunk ^ row % 8] == matrix[row, 8 * chunk : 8 * chunk + 8]).all()


@pytest.mark.parametrize("form", MMA.MMA.values(), ids=lambda form: f"{form.shape}-{form.inputs}-{form.sums}")
def test_the_registers_of_a_warp_hold_whole_matrices(form):
    m, n, k = form.shape
    defines = MMA.nvidia_defines(form)
    data = MMA.nvidia_data(form, np.random.default_rng(0))
    assert data.operands.shape == (defines["A_WORDS"] + 2 * defines["B_WORDS"], 32)
    assert data.begin.shape == data.end.shape == (defines["C_WORDS"], 32)
    assert data.begin.nbytes == m * n * {"f16": 2, "f64": 8}.get(form.sums, 4)
    assert (data.begin != data.end).any()
    assert form.flops == 2 * m * n * k


@pytest.mark.parametrize("form", WGMMA.FORMATS.values(), ids=lambda form: f"{form.dtype}-{form.sums}")
def test_a_warpgroup_s_registers_hold_sixty_four_rows(form):
    data = WGMMA.warpgroup_data(form, np.random.default_rng(0), 32, 5)
    assert data.images.shape == (64 + 32, 128)
    assert data.fragments.shape == (16, 128)
    assert data.begin.shape == data.end.shape == (WGMMA.sum_registers(form, 32), 128)


@dataclasses.dataclass
class ThreeSmDevice:
    """A device of three SMs, whose kernel takes `cycles` per round and reports the SM of each block."""

    cycles: float
    places: tuple = (0, 1, 2)

    def to_host(self, array):
        return array

    def chains(self):
        words = np.zeros(6, np.uint64)

        def launch(rounds):
            words[::2], words[1::2] = int(self.cycles * rounds**self.power), self.places

        return CHAINS.Chains(DeviceOnlyBench(self), launch, words, 100, 6400, 4, Work(flops=64))

    power: float = 1.0


@dataclasses.dataclass
class DeviceOnlyBench:
    device: object


def test_cycles_are_per_instruction_of_a_warp_and_operations_per_compute_unit():
    chains = ThreeSmDevice(128).chains()
    chains.call()
    figures = chains.observed()
    assert figures["cycles"].value == 2.0
    assert figures["per_clock"].value == 4 * 64 / 2.0
    chains.check()


def test_chains_that_do_not_grow_or_share_a_compute_unit_are_wrong_answers():
    with pytest.raises(Exception, match=r"twice as many steps take 1\.000 times as long"):
        ThreeSmDevice(128, power=0.0).chains().check()
    with pytest.raises(Exception, match="3 blocks ran on 2 SMs"):
        ThreeSmDevice(128, places=(0, 1, 1)).chains().check()


SCALARS = [
    ({"OPERATION": scalar.operation, "INDEPENDENT": 4}, "instructions.cu")
    for table in (SCALAR.FMA, SCALAR.INTEGER, SCALAR.SPECIAL)
    for scalar in table.values()
]
MATRIX = [
    ({**MMA.nvidia_defines(form), "INDEPENDENT": chains, "THREADS": 512}, "instructions_mma.cu")
    for form in MMA.MMA.values()
    for chains in (1, 8)
]
GROUPS = [
    ({**WGMMA.wgmma_defines(form, 64, a), "IN_FLIGHT": flight}, "instructions_wgmma.cu")
    for form in WGMMA.FORMATS.values()
    for a in ("shared", "registers")
    for flight in (1, 16)
]


# The machine instruction for each case, and its number per step.
MACHINE = {
    "fma_float64": "DFMA",
    "fma_float32": "FFMA",
    "fma_float16x2": r"HFMA2(\.MMA)?",
    "fma_bfloat16x2": r"HFMA2(\.MMA)?\.BF16_V2",
    "multiply_add": "IMAD",
    "logic": r"LOP3\.LUT",
    "shift": r"SHF\.L\.W\.U32\.HI",
    "ex2": r"MUFU\.EX2",
    "rcp": r"MUFU\.RCP",
    "rsqrt": r"MUFU\.RSQ",
    "cosine": r"MUFU\.COS",
    "f16": "H(G)?MMA.*",
    "bf16": "H(G)?MMA.*BF16",
    "tf32": "H(G)?MMA.*TF32",
    "e4m3": "Q(G)?MMA.*",
    "s8": "I(G)?MMA.*",
    "f64": "DMMA.*",
}
_FURTHER = 8  # further instructions of the same kind: addresses and constants


@pytest.mark.slow
@pytest.mark.parametrize(("defines", "file"), [*SCALARS, *MATRIX, *GROUPS])
def test_every_instruction_compiles_for_hopper_once_for_each_step(defines, file):
    if _nvrtc.library() is None:
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    # sm_90 does not have this instruction
    arch = "sm_89" if defines.get("INPUTS") == "e4m3" and "SHAPE" in defines else "sm_90a"
    options = [f"--gpu-architecture={arch}", "--ptxas-options=-v", "--ftz=true"]
    status, log, code = _nvrtc.built(
        _grid.source(f"tensor/{file}"), [*options, *(f"-D{name}={value}" for name, value in defines.items())]
    )
    assert status == 0, log
    assert "serialized" not in log
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled
    assert max(spilled) == 0 or (defines.get("INPUTS") == "f64" and max(spilled) < 256)
    if not _nvrtc.disassembler():
        pytest.skip("compiled; no disassembler here: pip install nvidia-cuda-nvdisasm")
    wanted = MACHINE[defines.get("OPERATION") or defines["INPUTS"]]
    total = sum(count for name, count in _nvrtc.opcodes(code).items() if re.fullmatch(wanted, name))
    steps = (
        defines["BODY"] + 4 if "COLUMNS" in defines else (64 if "INPUTS" in defines else 512) + defines["INDEPENDENT"]
    )
    assert steps <= total <= steps + _FURTHER


@dataclasses.dataclass
class IdleKernel:
    """A kernel that counts cycles and computes nothing."""

    def __call__(self, grid, block, args, shared_bytes=0):
        rounds, cycles = next(arg for arg in args if isinstance(arg, np.uint32)), args[-1]
        cycles[::2], cycles[1::2] = 1000 * int(rounds), np.arange(grid[0])

    def resources(self, threads, shared_bytes=0):
        return KernelResources(40, 0, 0, 2)


class IdleBench(_grid_device.PaperBench):
    """A bench whose kernels compute nothing."""

    def kernel(self, file, name, **defines):
        return IdleKernel()


FULL = [
    ("fma", {"dtype": "float16x2", "independent": 32}),
    ("integer", {"operation": "logic", "independent": 2}),
    ("special", {"function": "ex2", "independent": 2}),
    ("mma", {"shape": "m16n8k16", "dtype": "bfloat16", "sums": "float32", "independent": 16}),
    ("wgmma", {"dtype": "int8", "sums": "int32", "columns": 64, "a": "shared", "wait": "late"}),
]


@pytest.mark.parametrize(("name", "params"), FULL)
def test_a_kernel_that_computes_nothing_fails_its_check(name, params):
    paper = _grid_device.bench(SUITE, "nvidia")
    bench = IdleBench(*(getattr(paper, field.name) for field in dataclasses.fields(paper)))
    bench.case = Case("tensor", name, tuple(params.items()))
    task = SUITE.build(bench)
    overwrite(task)
    task.stages[""].call()
    assert task.stages[""].probe()["cycles"].value > 0
    assert "40 registers" in task.notes["resources"]
    with pytest.raises(WrongAnswer):
        task.check()


def test_the_sums_of_the_other_input_are_larger_by_one_also_where_two_share_a_word():
    sums = np.arange(64, dtype=np.float16).reshape(2, 32)
    words = sums.copy().view(np.uint32)
    shift = MMA.shifting("float16", words)
    for more in (1, 0):
        shift()
        np.testing.assert_array_equal(words.view(np.float16), sums + more)


class ExactKernel(IdleKernel):
    """A kernel that leaves the expected results of the input on the device: `results` computes them from its arrays."""

    def __init__(self, results):
        self.results = results

    def __call__(self, grid, block, args, shared_bytes=0):
        super().__call__(grid, block, args)
        *arrays, rounds, out, _ = args
        out.reshape(-1)[:] = np.resize(self.results(int(rounds), *arrays), out.size)


def sums_of(monkeypatch, module, name):
    """Return a function that computes the last sums from the first ones on the device and the drawn product."""
    draw, products = getattr(module, name), []

    def drawn(*args):
        data = draw(*args)
        products.append(data.end - data.begin)
        return data

    monkeypatch.setattr(module, name, drawn)
    return lambda _rounds, *arrays: arrays[-1] + products[-1]


def folded_integers(rounds, k, begin):
    steps = rounds * SCALAR.BODY // len(begin)
    return SCALAR.folded(SCALAR.results_of("logic", "uint32", begin, k, steps))


@pytest.mark.parametrize(("name", "params"), [FULL[1], *FULL[3:]])
def test_an_earlier_answer_of_chains_is_found(monkeypatch, name, params):
    module, draw = {"mma": (MMA, "nvidia_data"), "wgmma": (WGMMA, "warpgroup_data")}.get(name, (None, ""))
    kernel = ExactKernel(sums_of(monkeypatch, module, draw) if module else folded_integers)
    monkeypatch.setattr(_grid_device.PaperBench, "kernel", lambda *_args, **_defines: kernel)
    paper = _grid_device.bench(SUITE, "nvidia", **params)
    paper.case = Case("tensor", name, tuple(params.items()))
    expect_found(SUITE.build(paper), paper.open_device)


# ---- A recorded run of the suite tensor on an H200: the figures that the page on tensor cores quotes, and its charts


RUN = store.read_run(Path(__file__).parent / "recordings" / "h200-tensor.jsonl.gz")


def figures():
    rows = Summary(RUN).rows()
    return {row.result.case.id.removeprefix("tensor/"): row.figure.interval.centre for row in rows}


def test_each_rung_of_the_ladder_is_faster_than_the_one_below_and_reaches_the_share_that_the_page_quotes():
    medians = figures()
    rates = [medians[f"hgemm[rung={rung},n=8192]"] for rung in ("mma", "async", "bulk", "wgmma")]
    assert rates == sorted(rates)
    assert rates[-1] > 650e12
    shares = {
        dict(result.case.params)["rung"]: stats.median(series.values)
        for result in RUN.results
        for series in result.series
        if series.name == "of_vendor"
    }
    assert shares["bulk"] > 60
    assert shares["wgmma"] > 100
