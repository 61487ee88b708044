"""On two real GPUs of one machine (`pytest -m gpu tests/test_gpu_across.py`): NCCL between two runs, each with one GPU.

Each run is a node of a group and sees only its own GPU, as on two machines. Another host id for NCCL keeps it from
taking the shared memory of the machine, so that it goes over sockets or RDMA as between machines.
"""

import os

import _command as command
import pytest
from _command import end_processes, node_variables

from gpubench.analysis.quantities import headline, judged_values
from gpubench.measuring import inventory
from gpubench.model import store

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def uuids():
    uuids = [device.uuid for device in inventory.facts().devices if device.backend == "cupy" and device.uuid]
    if len(uuids) < 2:
        pytest.skip("needs two GPUs")
    return uuids[:2]


def visible(uuid):
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def start(uuid, arguments, host_id="", **environment):
    """Start gpubench with one visible GPU; ranks with another `host_id` count as another node's."""
    variables = {"NCCL_HOSTID": host_id} if host_id else {}
    return command.start(*arguments, CUDA_VISIBLE_DEVICES=visible(uuid), **variables, **environment)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_one_host", [True, False], ids=["one-host", "two-hosts"])
def test_two_runs_with_a_gpu_each_measure_collectives_and_messages_by_nccl(tmp_path, uuids, is_one_host):
    arguments = ("run", "collectives", "--device", "cuda:0", "--filter", "across", "--filter", "message")
    nodes = [
        start(
            uuid,
            [*arguments, "--out", str(tmp_path / f"{rank}.jsonl")],
            "" if is_one_host else f"node-{rank}",
            **node_variables(rank, 2, 20_700 + is_one_host),
        )
        for rank, uuid in enumerate(uuids)
    ]
    assert end_processes(*nodes, limit_s=280) == [0, 0]
    for rank, uuid in enumerate(uuids):
        run = store.read_run(tmp_path / f"{rank}.jsonl")
        assert run.manifest.facts.device("cuda:0").uuid == uuid
        assert {result.case.name for result in run.results} == {"across", "message"}
        for result in run.results:
            assert result.status == "ok", (result.case.id, result.reason)
            assert {series.rank for series in result.series} == {rank}
            assert (judged_values(headline(result)) > 0).all()
        (first, *_) = run.results
        assert "setup" in {series.label for series in first.series}, "the communicator is made by the first case"
        assert dict(first.notes)["NCCL_NVLS_ENABLE"] == os.environ["NCCL_NVLS_ENABLE"], "as conftest.py sets it"


@pytest.mark.timeout(300)
def test_two_processes_of_one_machine_measure_their_gpus_as_a_pair(tmp_path, uuids):
    folder = tmp_path / "pairs"
    arguments = ["fleet", "pairs", "--from-env", "--rounds", "1", "-o", str(folder)]
    nodes = [
        start(uuid, arguments, OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="2")
        for rank, uuid in enumerate(uuids)
    ]
    assert end_processes(*nodes, limit_s=280) == [4, 0], "two nodes are too few for a verdict"
    files = list((folder / "pairs" / "1").glob("*.jsonl.gz"))
    assert len(files) == 2
    for path in files:
        results = store.read_run(path).results
        assert {(result.case.param("by"), result.status) for result in results} == {("nccl", "ok")}
