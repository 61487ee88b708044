"""Operators of traced programs: their unavoidable work by hand, the trace read in pieces, and traces that say less."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from gpubench import plugins
from gpubench.analysis.summary import Summary
from gpubench.base.errors import BadOutput
from gpubench.base.json_stream import NotAList, objects_of
from gpubench.explaining.operators import operator_tables, operator_times, roofs
from gpubench.knowledge.operators import Operator, counted
from gpubench.model import store

RECORDINGS = Path(__file__).parent / "recordings"
BF16, FLOAT, LONG = "c10::BFloat16", "float", "long int"
QKV = (8, 16, 1024, 128)
HALF_OF_ATTENTION = 4 * 8 * 16 * 1024 * 1024 * 128 / 2


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values", "moved", "flops", "limit"),
    [
        (
            "aten::mm",
            ((64, 32), (32, 16)),
            (BF16, BF16),
            (),
            2 * (64 * 32 + 32 * 16 + 64 * 16),
            2 * 64 * 32 * 16,
            "tensor.bfloat16",
        ),
        (
            "aten::addmm",
            ((16,), (64, 32), (32, 16)),
            (FLOAT,) * 3,
            (),
            4 * (64 * 32 + 32 * 16 + 64 * 16),
            65536,
            "float32",
        ),
        ("aten::bmm", ((4, 8, 8), (4, 8, 8)), (BF16, BF16), (), 3 * 2 * 256, 4 * 1024, "tensor.bfloat16"),
        ("aten::add", ((64, 64), (64,), ()), (FLOAT, FLOAT, "Scalar"), (), 4 * (2 * 4096 + 64), 0, ""),
        ("aten::add_", ((64, 64), (64, 64)), (BF16, FLOAT), (), 2 * 4096 * 2 + 4 * 4096, 0, ""),
        ("aten::copy_", ((64, 64), (64, 64)), (BF16, FLOAT), (), 6 * 4096, 0, ""),
        ("aten::sum", ((64, 64),), (FLOAT,), (), 4 * 4096, 0, ""),
        ("aten::fill_", ((64, 64), ()), (FLOAT, "Scalar"), (), 4 * 4096, 0, ""),
        ("aten::embedding", ((1000, 64), (10,)), (BF16, LONG), (), 2 * 10 * 128 + 80, 0, ""),
        ("triton_poi_fused_add_0", ((64,), (64,), ()), (FLOAT, FLOAT, "Scalar"), (), 512, 0, ""),
        (
            "aten::_scaled_dot_product_flash_attention",
            (QKV,) * 3,
            (BF16,) * 3,
            ("", "", "", "0.", "True"),
            4 * 2 * 8 * 16 * 1024 * 128,
            HALF_OF_ATTENTION,
            "tensor.bfloat16",
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            (QKV,) * 3,
            (BF16,) * 3,
            ("", "", "", "0.", "False"),
            4 * 2 * 8 * 16 * 1024 * 128,
            2 * HALF_OF_ATTENTION,
            "tensor.bfloat16",
        ),
        (
            "aten::cudnn_convolution",
            ((2, 3, 8, 8), (4, 3, 3, 3)),
            (FLOAT, FLOAT),
            ("", "", "[1, 1]", "[2, 2]", "[1, 1]"),
            4 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 16),
            2 * (2 * 4 * 16) * 27,
            "float32",
        ),
    ],
)
def test_the_unavoidable_work_of_an_operator_is_counted_by_hand(name, shapes, types, values, moved, flops, limit):
    found = counted(Operator(name, shapes, types, values))
    assert (found.work.moved, found.work.flops, found.limit) == (moved, flops, limit)


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (Operator("aten::mm"), "its shapes were not recorded"),
        (Operator("aten::mm", ((8, 8), "[]"), (BF16, "")), "not all of its shapes"),
        (Operator("aten::add", ((), ()), ("Scalar", "Scalar")), "not all of its shapes"),
        (Operator("aten::_foreach_add_", ("[[8]]",), ("TensorList",)), "the types in a list of tensors"),
        (Operator("my::kernel", ((8,),), (FLOAT,)), "no rule for this operator"),
    ],
)
def test_unknown_work_has_a_reason(operator, reason):
    assert reason in counted(operator)


class TraceFile:
    """A trace as Kineto writes it, to which operators with one kernel each are added."""

    def __init__(self) -> None:
        self.events, self.at, self.last = [], 0.0, 0

    def add(self, name, shapes, types, us, kernel="kernel", cat="kernel", gap_us=2.0, **args):
        self.last += 1
        call = {"External id": self.last, "Input Dims": shapes, "Input type": types, "Concrete Inputs": []}
        if shapes is not None:
            self.events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": self.at, "dur": 1, "args": call})
        about = {"External id": self.last, "device": 0, "stream": 7, **args}
        self.events.append({"ph": "X", "cat": cat, "name": kernel, "pid": 0, "ts": self.at, "dur": us, "args": about})
        self.at += us + gap_us
        return self

    def text(self) -> str:
        device = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 85 * 10**9, "computeMajor": 9, "computeMinor": 0}]
        return json.dumps({"schemaVersion": 1, "deviceProperties": device, "traceEvents": self.events, "end": 1})


def a_trace() -> TraceFile:
    trace = TraceFile()
    for _ in range(3):
        trace.add("aten::mm", [[8192, 2048], [2048, 8192]], [BF16, BF16], 400)
        trace.add("aten::add_", [[8192, 8192], [8192, 8192]], [BF16, BF16], 120)
        trace.add("aten::strange", [[5]], ["float"], 10)
        trace.add("", None, None, 100, "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 3000.0, bytes=4_000_000)
    return trace


@pytest.fixture
def imported(call, tmp_path):
    """Return a function that imports a text as a file and gives the run, the output, and the path of the run."""

    def read(text: str, name: str = "t.json", packed: bool = False):
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
        done = call("import", tmp_path / name, "-o", tmp_path / "t.jsonl", "--force")
        return (store.read_run(tmp_path / "t.jsonl") if done.returncode == 0 else None), done, tmp_path / "t.jsonl"

    return read


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_of_torch_becomes_operators_with_shares_of_roofs(imported, packed):
    run, done, _ = imported(a_trace().text(), packed=packed)
    summary = Summary(run)
    times = operator_times(summary, roofs(summary.device("cuda:0"), None))
    assert [(time.name.split()[0], time.calls) for time in times] == [
        *(("aten::mm", 3), ("aten::add_", 3), ("Memcpy", 3), ("aten::strange", 3)),
    ]
    product, addition, copy, strange = times
    assert product.roof_s == pytest.approx(3 * 2 * 8192 * 8192 * 2048 / 989e12)
    assert addition.roof_s == pytest.approx(3 * 3 * 2 * 8192 * 8192 / 4.8e12)
    assert copy.reason == "link.h2d"
    assert (strange.roof_s, strange.reason) == (0.0, "gpubench has no rule for this operator")
    (table,) = operator_tables(summary)
    assert table.rows[-3][0] == "all operators"
    assert "98.4 % of the seconds have a share" in table.rows[-3][-1]
    assert [row[2] for row in table.rows[-2:]] == ["18.0 µs", "6.00 ms"]
    assert "Operators of cuda:0" in done.stdout


def test_a_training_step_of_torch_has_a_share_or_a_reason_for_every_second(call, tmp_path):
    """Two steps of a transformer in bfloat16 on one H200, traced with shapes by torch 2.11, cut to its operators."""
    call("import", Path(__file__).parent / "traces/torch.json.gz", "-o", tmp_path / "t.jsonl")
    summary = Summary(store.read_run(tmp_path / "t.jsonl"))
    device = summary.device("cuda:0")
    assert (device.name, device.arch, device.memory_bytes) == ("NVIDIA H200", "sm_90", 150109880320)
    times = operator_times(summary, roofs(device, Summary(store.read_run(RECORDINGS / "whole/h200.jsonl.gz"))))
    busy = next(result for result in summary.run.results if result.case.name == "trace").series[0].values[0]
    seconds = sum(time.seconds for time in times)
    assert seconds == pytest.approx(busy, rel=0.01)
    assert all(time.roof_s or time.reason for time in times)
    assert sum(time.seconds for time in times if time.roof_s) > 0.8 * seconds
    products = [time for time in times if time.name.startswith(("aten::mm", "aten::addmm"))]
    assert all(0.6 < time.roof_s / time.seconds < 1.2 for time in products)
    assert {time.reason for time in times if not time.roof_s} <= {
        "the types in a list of tensors are not recorded",
        "gpubench has no rule for this operator",
        "not all of its shapes and types were recorded",
        "faster than memory: a cache held its data",
    }


def test_the_roofs_are_those_that_a_run_of_the_machine_measured(imported, call):
    _, _, path = imported(a_trace().text())
    shown = call("explain", path, "--roofs", RECORDINGS / "whole/h200.jsonl.gz").stdout
    assert "dram 4692 GB/s (bandwidth/read[size=4GiB,dtype=float32])" in shown
    assert "link.h2d 55.27 GB/s (bandwidth/h2d[memory=pinned,size=256MiB])" in shown


def test_roofs_of_another_card_are_refused(imported, call):
    _, _, path = imported(a_trace().text().replace("NVIDIA H200", "NVIDIA A100-SXM4-80GB"))
    done = call("explain", path, "--roofs", RECORDINGS / "whole/h200.jsonl.gz")
    assert done.returncode == 2
    assert "the trace is of NVIDIA A100-SXM4-80GB" in done.stderr


def test_a_trace_without_shapes_lists_seconds_and_says_why(imported):
    trace = TraceFile().add("aten::mm", [], [], 400).add("", None, None, 100)
    run, _, _ = imported(trace.text())
    (table,) = operator_tables(Summary(run))
    assert [row[-1] for row in table.rows[:2]] == ["its shapes were not recorded"] * 2
    assert [row[2] for row in table.rows[:2]] == ["400 µs", "100 µs"]


def test_a_trace_of_jax_names_the_operations_of_xla(imported):
    meta = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0 NVIDIA H200"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 14, "args": {"name": "Stream #14(Compute)"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 99, "args": {"name": "XLA Ops"}},
    ]
    kernel = {"ph": "X", "pid": 1, "ts": 5.0, "dur": 30.0, "name": "gemm_kernel", "args": {"hlo_op": "dot.1"}}
    events = [*meta, {**kernel, "tid": 14}, {**kernel, "tid": 99}]
    run, _, _ = imported(json.dumps({"displayTimeUnit": "ns", "metadata": {}, "traceEvents": events}))
    (time,) = operator_times(Summary(run), {})
    assert (time.name.strip(), time.seconds) == ("dot.1", pytest.approx(30e-6))


def test_a_training_step_of_jax_has_the_kernels_of_its_graph_and_the_roofs_of_the_given_run(call, tmp_path):
    """Three steps of two products in bfloat16 on one H200, traced by JAX 0.11, which runs them as one graph."""
    call("import", Path(__file__).parent / "traces/jax.json.gz", "-o", tmp_path / "j.jsonl")
    shown = call("explain", tmp_path / "j.jsonl", "--roofs", RECORDINGS / "whole/h200.jsonl.gz").stdout
    times = operator_times(Summary(store.read_run(tmp_path / "j.jsonl")), {})
    assert (times[0].name.strip(), times[0].calls) == ("gemm_fusion_dot_general_6", 3)
    assert {time.name.strip() for time in times} >= {"loop_add_fusion", "input_reduce_fusion", "Memset 0"}
    assert sum(time.seconds for time in times) == pytest.approx(5.92e-3, rel=0.01)
    assert "0.2 % of the seconds have a share, the others a reason" in shown
    assert "dram 4692 GB/s" in shown


def test_a_traced_run_of_profile_lists_its_kernels_without_shares():
    summary = Summary(store.read_run(RECORDINGS / "h200-trace.jsonl.gz"))
    (table,) = operator_tables(summary)
    assert table.rows[0][-1] == "CUPTI records no shapes of kernels"
    assert {row[-1] for row in table.rows} >= {"dram"} or "link" in str(table.rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "damaged, or newer"),
        ('{"traceEvents": []}', "no kernel of a GPU"),
        ('{"traceEvents": [' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_trace_is_refused_in_a_line(imported, text, message):
    _, done, _ = imported(text)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_torn_trace_gives_what_it_has(imported):
    text = a_trace().text()
    run, _, _ = imported(text[: len(text) * 2 // 3])
    assert run.results


def test_objects_are_read_in_pieces_of_any_length():
    text = '{"a": [1], "list": [{"x": "]"}, {"y": [{}]} ,\n{"z": 1.5}], "after": 3}'
    for size in (1, 2, 7, 1000):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert list(objects_of(chunks, "list")) == [{"x": "]"}, {"y": [{}]}, {"z": 1.5}]
    assert list(objects_of(['[{"x": 1}', "]"], "list")) == [{"x": 1}]
    with pytest.raises(NotAList, match="no list 'list'"):
        list(objects_of(['{"a": 1}'], "list"))


def test_a_long_trace_takes_little_memory():
    importer = plugins.load("importers", "chrome_trace")
    text = a_trace().text()
    events = text[text.index("[", text.index("traceEvents")) + 1 : text.rindex("]")]
    chunks = [text[: text.index("[", text.index("traceEvents")) + 1], *[events + ","] * 2000, events, "]}"]
    tracemalloc.start()
    importer.read_chunks(chunks)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(map(len, chunks)) > 6_000_000
    assert most < 6_000_000


def test_a_trace_without_events_is_refused():
    with pytest.raises(BadOutput, match="no list 'traceEvents'"):
        plugins.load("importers", "chrome_trace").read_chunks(['{"a": "traceEvents"}'])
