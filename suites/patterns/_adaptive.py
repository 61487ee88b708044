"""Measure a sender that picks path, chunk size and depth of each message by a model, and the regret of its choices.

Every way to send is measured at a few sizes. The model of each way follows from them, and the sender takes the way
whose predicted time is shortest."""

from collections.abc import Sequence

from gpubench.api import suite as gb

from .._between import Params
from ._cores import on_own_core
from ._path_model import Models, SendModel, WayToSend, choose, regrets
from ._routes_gpu import GPU_ROUTES, HostToDeviceRoutes, PeerRoutes
from ._routes_host import RECEIVER, HostRoutes

_PROCESSES = "processes"
# These include every chunk size, at which a way changes its behaviour.
_PROBED = (2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24)
_SENT = (3 * 2**11, 2**15, 3 * 2**16, 3 * 2**18, 3 * 2**20, 3 * 2**22)  # between the sizes of the model
_CHECKED_BYTES = 5 * 2**18 + 2**12
_SMOKE = 2  # sizes in the smoke tier, which only shows that every way works
_ROUNDS = {"smoke": 1, "quick": 9, "full": 25}  # how many times each way sends each size
_SMALL_BYTES, _MORE = 2**18, 5  # up to this size a message takes microseconds, and is sent more often

topic = gb.Topic(
    views=[
        gb.View("bars", "Worst regret of the adaptive sender", ("adaptive",), by=("link",), series="regret_worst"),
        gb.View("bars", "Adaptive sender throughput", ("adaptive",), by=("link",)),
    ],
)


def _links(target: gb.Target) -> tuple[str, ...]:
    if target.is_host:
        return (_PROCESSES,)
    return ("h2d", "peer") if target.device.peers else ("h2d",)


def _ranks(params: Params) -> int:
    return 2 if params["link"] == _PROCESSES else 1


def _devices(params: Params) -> int:
    return 2 if params["link"] == "peer" else 1


@topic.case(when=gb.beyond_quick, ranks=_ranks, devices=_devices, link=_links)
def adaptive(bench: gb.Bench, link: str) -> gb.Task:
    """Send messages of six sizes, each in the way that a measured model predicts as fastest: payload.

    A way is a path with the size and the number of its chunks in flight."""
    is_host = link == _PROCESSES
    routes = HostRoutes(bench, max(_PROBED)) if is_host else GPU_ROUTES[link](bench, max(_PROBED))
    sender = AdaptiveSender(bench, routes)

    def poison() -> None:
        routes.poison()
        bench.barrier()

    def check() -> gb.Observation:
        wrong = routes.wrong_bytes()
        gb.expect(wrong == 0, f"{wrong} B of the last message differ from what was sent")
        return sender.observed

    work = gb.Work(payload=sum(sender.sizes), items=len(sender.sizes))
    stage = gb.Stage(sender.send_all, work, "payload", clock="self", effort=gb.POINT)
    return gb.Task.of(stage, check=check, poison=poison, close=routes.close, notes={**sender.notes, **routes.notes})


class AdaptiveSender:
    """Sends each message in the way that a measured model predicts as fastest, and knows the regret of these choices.

    `observed` has the regrets, and `notes` the chosen ways and the models as text."""

    def __init__(self, bench: gb.Bench, routes: HostRoutes | HostToDeviceRoutes | PeerRoutes) -> None:
        self._bench, self._routes = bench, routes
        tier = bench.target.tier
        self._rounds = _ROUNDS[tier]
        probed, self.sizes = (sizes[:_SMOKE] if tier == "smoke" else sizes for sizes in (_PROBED, _SENT))
        self._expect_right_ways()
        measured = self._measured(probed)
        self.models: Models = {
            way: SendModel.through(probed, [times[way] for times in measured.values()]) for way in routes.ways
        }
        choice_regrets = regrets(self.models, self._measured(self.sizes))
        self.observed: gb.Observation = {
            "regret_median": gb.Observed(choice_regrets.median),
            "regret_worst": gb.Observed(choice_regrets.worst),
            "regret_fixed": gb.Observed(choice_regrets.fixed_worst),
            "regret": gb.Profile(choice_regrets.by_size),
        }
        chosen = ((nbytes, choose(self.models, nbytes).text) for nbytes in self.sizes)
        self.notes = {
            "sizes": ", ".join(gb.units.size(nbytes) for nbytes in self.sizes),
            "chosen": "; ".join(f"{gb.units.size(nbytes)}: {text}" for nbytes, text in chosen),
            "models": "; ".join(f"{way.text}: {model.text}" for way, model in self.models.items()),
        }

    def _expect_right_ways(self) -> None:
        """Send one message in each way, and raise WrongAnswer if a byte arrives wrong."""
        for way in self._routes.ways:
            self._routes.poison()
            self._routes.send(way, _CHECKED_BYTES)
            wrong = sum(self._bench.exchange(self._routes.wrong_bytes()))
            gb.expect(wrong == 0, f"{wrong} of {_CHECKED_BYTES} B differ from what was sent by {way.text}")

    def _measured(self, sizes: Sequence[int]) -> dict[int, dict[WayToSend, float]]:
        """Return the seconds of every way for each size of `sizes` (bytes), keyed by size and then by way."""
        measured: dict[int, dict[WayToSend, list[float]]] = {
            nbytes: {way: [] for way in self._routes.ways} for nbytes in sizes
        }
        with on_own_core(self._bench):
            for turn in range(_MORE * self._rounds):
                for nbytes, ways in measured.items():
                    if nbytes <= _SMALL_BYTES or not turn % _MORE:
                        for way, seconds in ways.items():
                            seconds.append(self._routes.send(way, nbytes))
        shortest = [[min(seconds) for seconds in ways.values()] for ways in measured.values()]
        shortest = self._bench.exchange(shortest)[min(RECEIVER, self._bench.world - 1)]
        return {
            nbytes: dict(zip(self._routes.ways, row, strict=True)) for nbytes, row in zip(sizes, shortest, strict=True)
        }

    def send_all(self) -> float:
        """Send one message of each size in `sizes` in the way that the models choose; return the sum of the seconds."""
        with on_own_core(self._bench):
            return sum(self._routes.send(choose(self.models, nbytes), nbytes) for nbytes in self.sizes)
