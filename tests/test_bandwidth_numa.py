"""The host link by NUMA node: lists of nodes, PCI bridges, memory that is bound and verified to be there."""

import dataclasses
import mmap

import _grid
import pytest
from _bandwidth import H200, SUITE, PlainGpu, assert_checked, build_on, ids, sibling
from _grid_device import PAPER, bench

from gpubench.authoring.axes import Target
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.measuring import inventory
from gpubench.model import Facts

NUMA, LINK = sibling("_host_link"), sibling("_host_link")
PAGE = mmap.PAGESIZE


def pci_tree(root, *devices, node="0"):
    bus = root / "bus/pci/devices"
    bus.mkdir(parents=True)
    for path in devices:
        device = root / "devices" / path
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        (bus / device.name).symlink_to(device)
    return bus


@pytest.mark.parametrize(
    ("text", "numbers"), [("0\n", (0,)), ("0-1", (0, 1)), ("0-1,4,6-7\n", (0, 1, 4, 6, 7)), ("", ())]
)
def test_a_list_of_nodes_is_read_as_the_kernel_writes_it(text, numbers):
    assert NUMA.node_numbers(text) == numbers


def test_the_numa_node_of_a_gpu_is_that_of_sysfs_or_unknown(tmp_path):
    bus = pci_tree(tmp_path / "a", "pci0000:00/0000:00:01.0/0000:1B:00.0".lower(), node="1")
    assert NUMA.node_of("0000:1B:00.0", bus) == 1
    assert NUMA.node_of("0000:99:00.0", bus) is None
    assert NUMA.node_of("0000:1b:00.0", pci_tree(tmp_path / "b", "pci0000:00/0000:1b:00.0", node="-1")) is None


def test_gpus_are_reported_as_sharing_a_root_port_only_if_they_do(tmp_path):
    switch = "pci0000:40/0000:40:01.0/0000:41:00.0"
    bus = pci_tree(
        tmp_path,
        f"{switch}/0000:42:00.0/0000:43:00.0",
        f"{switch}/0000:42:01.0/0000:44:00.0",
        "pci0000:80/0000:80:01.0/0000:81:00.0",
    )
    gpus = {"cuda:0": "0000:43:00.0", "cuda:1": "0000:44:00.0", "cuda:2": "0000:81:00.0"}
    assert NUMA.bridges_above("0000:43:00.0", bus) == ("0000:40:01.0", "0000:41:00.0", "0000:42:00.0")
    assert NUMA.shared_upstream(list(gpus), list(gpus.values()), bus) == "cuda:0 and cuda:1 share 0000:40:01.0"
    apart = ["0000:43:00.0", "0000:81:00.0"]
    assert NUMA.shared_upstream(["cuda:0", "cuda:2"], apart, bus) == "each device has a root port of its own"
    assert NUMA.shared_upstream(["cuda:0"], ["0000:99:00.0"], bus).startswith("unknown")


def test_bound_memory_is_on_its_node_and_the_kernel_says_so():
    nodes = NUMA.node_numbers(inventory_nodes())
    memory = NUMA.NodeMemory(5 * PAGE + 8, nodes[0], nodes)
    assert (memory.array.nbytes, memory.pages.nbytes) == (5 * PAGE + 8, 6 * PAGE)
    NUMA.bind(memory.pages.ctypes.data, memory.pages.nbytes, nodes[0])
    assert memory.expect_placed() == {"pages by NUMA node": f"node {nodes[0]}: 6"}


def inventory_nodes():
    return dict(inventory._host()).get("numa", "0")


def test_pages_on_another_node_or_not_mapped_fail_the_check(monkeypatch):
    memory = NUMA.NodeMemory(8 * PAGE, 0, (0,))
    memory._map.madvise(mmap.MADV_DONTNEED, 2 * PAGE, 3 * PAGE)
    with pytest.raises(WrongAnswer, match=r"none \(No such file or directory\): 3, node 0: 5; all should be on node 0"):
        memory.expect_placed()
    memory.pages.fill(1)
    memory.expect_placed()
    monkeypatch.setattr(NUMA, "placement", lambda *_: {0: 7, 1: 1})
    with pytest.raises(WrongAnswer, match="node 0: 7, node 1: 1; all should be on node 0"):
        memory.expect_placed()


def test_where_the_call_is_refused_the_nodes_are_read_from_the_table_of_the_process(monkeypatch):
    memory = NUMA.NodeMemory(8 * PAGE, 0, (0,))
    NUMA.bind(memory.pages.ctypes.data, memory.pages.nbytes, 0)
    asked = NUMA.placement(memory.pages.ctypes.data, memory.pages.nbytes)
    monkeypatch.setattr(NUMA, "_call_system", lambda *_: 1)  # EPERM
    assert NUMA.placement(memory.pages.ctypes.data, memory.pages.nbytes) == asked == {0: 8}
    text = "7f10 default file=/lib/x.so N9=1\n7f20 bind:1 anon=6 dirty=6 N0=2 N1=4 kernelpagesize_kB=4\n7f90 default\n"
    assert [NUMA.mapped_nodes(text, at) for at in (0x7F34, 0x7F95, 0x10)] == [{0: 2, 1: 4}, {}, {}]


def test_a_second_node_that_is_missing_is_a_skip_that_names_it():
    with pytest.raises(Skip, match=r"no NUMA node 1 with memory \(nodes with memory: 0\)"):
        build_on(PlainGpu(), "host_link", device="cuda:0", node=1, direction="h2d", size_bytes=2**20)


def test_a_kernel_that_refuses_to_bind_memory_is_a_skip_with_the_remedy(monkeypatch):
    monkeypatch.setattr(NUMA, "_call_system", lambda *_: 1)
    with pytest.raises(Skip, match=r"bind memory to NUMA node 1 \(Operation not permitted\); in a container"):
        NUMA.NodeMemory(PAGE, 1, (0, 1))
    monkeypatch.setattr(NUMA.platform, "machine", lambda: "riscv64")
    with pytest.raises(Skip, match="supported on x86_64 and aarch64, not on riscv64"):
        NUMA.bind(0, PAGE, 0)
    monkeypatch.undo()
    memory = NUMA.NodeMemory(PAGE, 0, (0,))
    with pytest.raises(Skip, match="Invalid argument"):
        NUMA.bind(memory.pages.ctypes.data, PAGE, 1000)


@pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_words_and_pages_are_checked_and_the_pages_are_unlocked_at_the_end(direction):
    paper, locked = bench(SUITE), []

    def register(pages):
        locked.append(pages.nbytes)
        return lambda: locked.remove(pages.nbytes)

    paper.open_device.register = register
    task = LINK.host_link(paper, "cuda:0", 0, direction, 4 * PAGE)
    assert locked == [4 * PAGE]
    assert (task.stages[""].limit, task.stages[""].work.payload) == (f"link.{direction}", 4 * PAGE)
    assert task.notes["pages by NUMA node"] == "node 0: 4"
    assert_checked(task)
    assert locked == []


@pytest.mark.skipif(_grid.COMPILER is None, reason="needs g++")
def test_a_rank_of_all_gpus_counts_its_own_copy_and_the_sum_of_all():
    paper = bench(SUITE)
    paper.open_device.register = lambda _: lambda: None
    paper.rank, paper.world, paper.peers = 1, 2, (PAPER, PAPER)
    task = LINK.host_link_all(paper, 2, "d2h", 4 * PAGE)
    stage = task.stages[""]
    assert (stage.work.payload, stage.also["sum"].payload) == (4 * PAGE, 8 * PAGE)
    assert task.notes["shared upstream"].startswith("unknown")
    assert_checked(task)


def points(tier, nodes):
    facts = Facts((H200,), host=(("numa", nodes),))
    cases = [case for case in SUITE.cases(Target(facts, H200, tier)) if case.name == "host_link"]
    return {str(case.param("node")) for case in cases}


def test_cases_have_the_nodes_of_the_inventory_and_the_full_tier_adds_a_second_one():
    assert points("quick", "0") == {"0"}
    assert points("full", "0") == {"0", "1"}
    assert points("quick", "0-1") == points("full", "0-1") == {"0", "1"}
    assert points("full", "0,2") == {"0", "1", "2"}
    assert "host_link[device=cuda:0,node=0,direction=h2d,size=64MiB]" in {
        case.removeprefix("bandwidth/") for case in ids(H200, "quick")
    }


def test_all_gpus_of_a_host_copy_at_once_with_a_rank_each():
    peers = tuple(f"cuda:{index}" for index in range(1, 8))
    gpu = dataclasses.replace(H200, peers=peers)
    cases = [case for case in SUITE.cases(Target(Facts((gpu,)), gpu)) if case.name == "host_link_all"]
    assert {(case.ranks, case.devices) for case in cases} == {(8, 8)}
