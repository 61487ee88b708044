"""Patterns of applications and deaths on the host, with ranks in threads: right results pass, wrong ones are found."""

import _grid
import _make as make
import numpy as np
import pytest
from _grid_device import bench as paper_bench
from _grid_device import products_by_numpy
from _modules import suite_module
from _poison import overwrite
from _sinks import ResultSink
from _thread_ranks import part, together

from gpubench import plugins
from gpubench.analysis.quantities import judged_values
from gpubench.api.suite import random_words
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import inventory
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Settings


def is_wrong(check):
    """Return the message of the wrong answer that a check finds; empty if it finds none."""
    try:
        check()
    except WrongAnswer as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("buckets", "bounds"),
    [(1, [(0, 8)]), (3, [(5, 8), (2, 5), (0, 2)]), (8, [(layer, layer + 1) for layer in range(7, -1, -1)])],
)
def test_buckets_follow_the_backward_pass_from_the_last_layer_on(buckets, bounds):
    assert part("_gradients").bucket_bounds(8, buckets) == bounds


def test_a_gradient_without_the_sum_over_other_ranks_is_wrong():
    def body(bench):
        step = part("_gradients").BackwardPass(bench, 16, 32, 2)
        step.poison()
        step.seconds()
        right = is_wrong(step.check)
        step._group.received[: step._group.sent.size] = step._group.sent
        answer = right, is_wrong(step.check)
        step.close()
        return answer

    for right, wrong in together(2, body):
        assert right == ""
        assert "gradients of layer 0, summed over all ranks, are wrong" in wrong


def test_a_pipeline_that_leaves_out_a_layer_is_wrong():
    def body(bench):
        rank = part("_stages").PipelineRank(bench, 4, 64)
        rank.poison()
        latencies = rank.seconds()
        right = is_wrong(rank.check)
        rank.redraw()
        earlier = is_wrong(rank.check)
        rank.seconds()
        right += is_wrong(rank.check)
        rank._weights = rank._weights[:1]
        rank.seconds()
        answer = right, is_wrong(rank.check), min(latencies) > 0, rank.observed()["requests"].value, earlier
        bench.barrier()
        rank.close()
        bench.barrier()
        rank.release()
        return answer

    first, last = together(2, body)
    assert first[:2] == ("", "")
    assert last[0] == ""
    assert "outputs of the pipeline are wrong" in last[1]
    assert last[2]
    assert last[3] > 0
    assert "outputs of the pipeline are wrong" in last[4]


@pytest.mark.parametrize("way", ["shared", "private"])
def test_products_with_other_weights_than_those_of_the_file_are_wrong(way, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def body(bench):
        model = part("_shared_weights").ModelFile(bench, 64)
        task = part("_shared_weights").LoadedModel(model, way).task()
        messages = []
        if task.stages:
            overwrite(task)
            stage = task.stages[""]
            assert is_wrong(task.check)
            assert stage.call() > 0
            messages = [is_wrong(task.check)]
            model.output[1, 2] += 1
            messages.append(is_wrong(task.check))
            model.output[1, 2] -= 1
            stage.inputs()
            messages.append(is_wrong(task.check))
            stage.call()
            messages.append(is_wrong(task.check))
        bench.barrier()
        task.close()
        task.release()
        return messages

    answers = together(2, body)
    assert answers[1][0] == ""
    assert all("products with the loaded weights are wrong" in answers[1][place] for place in (1, 2))
    assert answers[1][3] == ""
    assert list(tmp_path.iterdir()) == []


def shape(*sides):
    return part("_splits").LayerShape(*sides)


def test_a_split_is_possible_where_it_divides_the_layer_of_24_t_d_squared_and_4_t_length_d_operations():
    possible = part("_splits").possible_splits
    assert possible(shape(4, 16, 128, 2), 2) == ("unsplit", "data", "tensor", "sequence", "pipeline")
    assert possible(shape(1, 16, 128, 2), 2) == ("unsplit", "tensor", "sequence", "pipeline")
    assert possible(shape(1, 15, 192, 3), 2) == ("unsplit", "pipeline")
    assert possible(shape(4, 16, 128, 2), 4) == ("unsplit", "data", "sequence")
    assert shape(4, 16, 128, 2).flops == 24 * 64 * 128**2 + 4 * 64 * 16 * 128


@pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
def test_a_gpu_computes_the_same_layer_and_gradients_by_the_vendors_products(monkeypatch):
    splits, products = part("_splits"), part("_products")
    for module in (products, suite_module("inference", "_prefill_attention")):
        monkeypatch.setattr(module, "vendor", products_by_numpy)
    monkeypatch.setattr(products, "address", lambda array: array.ctypes.data)
    paper = paper_bench(plugins.load("suites", "patterns"), "nvidia")
    layer = splits.TransformerLayer(paper, shape(2, 24, 256, 2))
    out, rows = np.full_like(layer.input, np.nan), np.arange(24)
    expected = splits.in_double(layer.weights, layer.input[:24], rows, 128)
    for _ in range(2):  # the second call uses the calls of the first one
        layer.whole(layer.input, 2, out)
        products.expect_close(out[:24], expected, "outputs")
    layer.input[24:] = 0
    layer.whole(layer.input, 2, out)
    products.expect_close(out[:24], expected, "outputs")
    x, flowing = layer.input[:24], layer.input[24:48]
    flowing[:] = x[::-1]
    results = [("tn", np.empty((256, 256), "float16"), x.T), ("nt", np.empty((24, 256), "float16"), x)]
    multiply, others = products.Products(paper), {"tn": flowing, "nt": layer.weights["q"]}
    for order, result, factor in results:
        multiply(x, others[order], result, order)
        other = others[order].T if order == "nt" else others[order]
        products.expect_close(result, factor.astype(float) @ other.astype(float), "gradients")


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_split_of_a_layer_is_the_whole_layer(world):
    splits = part("_splits")

    def body(bench):
        layer = splits.SplitLayer(bench, splits.LayerShape(6, 12, 192, 3))
        layer._poison()
        observed = layer._check()
        layer._close()
        return layer._splits, observed

    for message, observed in together(world, body):
        assert message == splits.possible_splits(splits.LayerShape(6, 12, 192, 3), world)
        assert set(observed) == {f"efficiency {split}" for split in message[1:]}
        assert all(observed[name].value > 0 for name in observed)


@pytest.mark.parametrize(
    ("split", "name"), [("tensor", "_column_row"), pytest.param("data", "_whole", marks=pytest.mark.slow)]
)
def test_a_split_with_a_wrong_matrix_is_found(split, name):
    splits = part("_splits")

    def body(bench):
        layer = splits.SplitLayer(bench, splits.LayerShape(2, 8, 128, 2))
        inner = layer._layer
        if bench.rank == 1:
            weights = getattr(inner, name)
            weights["down"] = 2 * weights["down"]
        message = is_wrong(layer._check)
        layer._close()
        return message

    first, second = together(2, body)
    assert first.endswith(f"outputs of the layer split by {split} are wrong")
    assert second.endswith("are wrong")


def test_a_message_that_did_not_arrive_is_found():
    def body(bench):
        ring = part("_failure").MessageRing(bench, 2**12)
        ring.open()
        ring.verify_round(ring.round)
        ring.stage()
        ring.verify_round(ring.staged_round)
        total = ring.add_all()
        answer = is_wrong(lambda: ring.verify_round(ring.board.meet)), int(total[0])
        bench.barrier()
        ring.close()
        ring.release()
        return answer

    pattern = [int(random_words(7 + rank, 0, 1).view(np.uint8)[0]) for rank in range(3)]
    for wrong, first_byte in together(3, body):
        assert "that arrived over the ring differ from the data written" in wrong
        assert first_byte == sum(pattern) % 256


@pytest.mark.parametrize("in_file", [False, True])
def test_an_interrupted_save_leaves_the_snapshot_before_and_a_changed_bit_is_found(in_file, tmp_path):
    module = part("_snapshots")

    def body(bench):
        board = bench.board(module.SAVED, room_bytes=2 * 2**12, has_beats=True)
        state = module.State(bench, 2**12)
        store = module.Snapshots(bench, board, state, tmp_path / "kept" if in_file else None)
        (tmp_path / "kept").mkdir()
        while state.steps < 16:
            state.step()
            if state.steps % 8 == 0:
                store.save()
        store.expect_saved()
        kept = state.array.copy()
        while state.steps < 24:
            state.step()
        later = state.array.copy()
        store.save_half()
        store.resume(0)
        assert state.steps == 16
        assert (state.array == kept).all()
        while state.steps < 24:
            state.step()
        same = bool((state.array.view(np.uint32) == later.view(np.uint32)).all())
        store.save()
        state.array.view(np.uint32)[5] ^= 1
        message = is_wrong(store.expect_saved)
        store.close()
        board.close()
        return same, message

    ((same, save_error),) = together(1, body)
    assert same
    assert save_error == "1 of 1024 words of the snapshot differ from the state"
    assert (tmp_path / "kept").exists() is not in_file


# ---- Deaths of real ranks in real processes, and the patterns that each machine can run.


H200 = {"memory_bytes": 150 * 10**9, "cache_bytes": 60 * 2**20, "units": 132}
ONE = make.facts(make.device(**H200))
TWO = make.facts(make.device(peers=("cuda:1",), **H200), make.device("cuda:1", peers=("cuda:0",), **H200))
APPLICATIONS = ("abort", "death", "gradients", "layer", "snapshot", "stages", "weights")
MOST_S = {"": 1.0, "rebuild": 3.0, "staged": 3.0, "abort": 3.0}
MOST_REBUILD_S = 10.0  # seconds to rebuild a communicator


def planned(facts, tier, device="cuda:0"):
    jobs = planning.make(facts, Settings(("patterns",), (device,), tier)).jobs
    able = [job for job in jobs if job.case.name in APPLICATIONS and not planning.missing_devices(job)]
    return {(job.case.name, job.case.ranks, len(job.devices)) for job in able}


def test_with_two_gpus_each_has_a_rank_and_deaths_have_a_third_rank():
    assert planned(TWO, "full") >= {
        ("abort", 3, 2),
        ("death", 3, 2),
        ("death", 3, 1),
        ("gradients", 2, 2),
        ("layer", 2, 2),
        ("snapshot", 2, 1),
        ("stages", 2, 2),
        ("weights", 4, 1),
    }
    assert {name for name, _, _ in planned(TWO, "quick")} == {"gradients", "layer", "stages"}
    assert planned(ONE, "quick") == set()
    assert {name for name, _, _ in planned(ONE, "full")} == {"death", "snapshot", "stages", "weights"}


def run(facts, device, tier, *filters):
    """Return the results of the selected jobs that can run."""
    plan = planning.make(facts, Settings(("patterns",), (device,), tier, filters=filters))
    shelf = ResultSink()
    with Runner(plan, SamplingProcess((), 0.0), shelf, 120.0) as runner:
        runner.run([job for job in plan.jobs if not planning.missing_devices(job)], 0.0, lambda event: None)
    assert shelf
    assert [(result.case.id, result.status, result.reason) for result in shelf if result.status != "ok"] == []
    return shelf


def expect_fast(results):
    """Assert that every death is noticed in time and every group continues soon."""
    for result in results:
        for series in result.series:
            if series.role == "primary" and series.unit == "s":
                most = (
                    MOST_REBUILD_S if (result.case.name, series.stage) == ("abort", "rebuild") else MOST_S[series.stage]
                )
                assert 0 < float(judged_values(series).max()) < most, (result.case.id, series.label)


@pytest.mark.slow
def test_ranks_continue_after_a_death_in_each_phase():
    results = run(inventory.facts(), "host", "full", "death")
    assert {result.case.param("phase") for result in results} == {
        "opening",
        "mapped",
        "copying",
        "barrier",
        "collective",
    }
    expect_fast(results)


@pytest.mark.slow
def test_work_is_resumed_from_memory_and_from_a_file_whenever_its_process_dies():
    results = run(inventory.facts(), "host", "full", "snapshot")
    lost = {(result.case.param("medium"), result.case.param("amid")): value(result, "lost") for result in results}
    assert lost == {("memory", "step"): 5, ("memory", "save"): 8, ("file", "step"): 5, ("file", "save"): 8}


def value(result, name):
    (named_series,) = (series for series in result.series if series.name == name)
    return named_series.values[0]


@pytest.fixture(scope="module")
def gpu():
    machine = inventory.facts()
    return machine, next(device for device in machine.devices if device.backend == "cupy")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["death", "abort"])
def test_gpus_continue_after_a_death(gpu, name):
    facts, device = gpu
    if name == "abort" and not device.peers:
        pytest.skip("needs two GPUs")
    expect_fast(run(facts, device.id, "full", name))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["snapshot", "stages", "weights"])
def test_patterns_of_one_gpu_pass_their_checks(gpu, name):
    facts, device = gpu
    run(facts, device.id, "smoke", name)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradients", "layer"])
def test_patterns_of_several_gpus_pass_their_checks(gpu, name):
    facts, device = gpu
    if not device.peers:
        pytest.skip("needs two GPUs")
    run(facts, device.id, "smoke", name)
