"""Copy between all pairs of GPUs at once, in both directions, and compare every word that arrives."""

from functools import partial

from gpubench.api import suite as gb

from .._between import ranks_of
from ._identical import effort

topic = gb.Topic(
    views=[gb.View("bars", "Soak: copy throughput, all pairs at once", ("links",), by=("of",), series="self")]
)


def _is_first(target: gb.Target) -> bool:
    """Return whether the target is a GPU with peers, and the first of them: the case uses all of them together."""
    first = min((target.device.id, *target.device.peers), key=[device.id for device in target.facts.devices].index)
    return not target.is_host and bool(target.device.peers) and target.device.id == first


@topic.case(
    when=_is_first,
    ranks=ranks_of,
    devices=ranks_of,
    of=lambda target: (1 + len(target.device.peers),),
    size_bytes=gb.points((2**26,), (2**22,), (2**28,)),
)
def links(bench: gb.Bench, of: int, size_bytes: int) -> gb.Task:
    """Bandwidth at which a GPU writes `size_bytes` to the memory of each other GPU, while all others do the same.

    Each rank has a GPU, and its payload is the sum of its copies. Every word that arrived is compared."""
    del of
    return _Links(bench, size_bytes).task()


class _Links:
    """The copies of one rank from its GPU to memory that it allocates on each of the other GPUs."""

    def __init__(self, bench: gb.Bench, size_bytes: int) -> None:
        self._bench = bench
        bench.need(size_bytes * (bench.world + 1))
        own = bench.peers[bench.rank]
        self._words = bench.words(size_bytes // 8, bench.seed + bench.rank)
        self._source = self._words.array
        peers = [peer for peer in bench.peers if peer.id != own.id]
        self._targets = {peer.id: bench.device.peer_memory(peer, size_bytes) for peer in peers}

    def task(self) -> gb.Task:
        """Return the task; each call of its stage copies to all others at once, and compares what arrived."""
        work = gb.Work(payload=self._source.nbytes * len(self._targets))
        how = effort(self._bench)
        stage = gb.Stage(self._call, work, "payload", clock="self", effort=how, checked=True)
        return gb.Task.of(stage, check=lambda: None, notes={"kernel": "copies between all pairs"})

    def _call(self) -> float:
        """Copy new words to all other GPUs once all ranks are ready, compare them, and return the seconds."""
        device, name = self._bench.device, self._bench.device.device.id
        self._words.redraw(self._source)
        device.synchronize()
        copies = [partial(device.copy, target, self._source) for target in self._targets.values()]
        self._bench.barrier()
        seconds = device.time(lambda: device.together(*copies), 1, gated=False).device[0]
        device.synchronize()
        for peer, target in self._targets.items():
            wrong = self._words.wrong(target)
            gb.expect(wrong == 0, f"copy from {name} to {peer}: {wrong} of {target.nbytes // 8} words are wrong")
        return seconds
