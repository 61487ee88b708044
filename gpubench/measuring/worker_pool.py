"""Keep the worker processes of a run from case to case: one for each rank on a device."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence

from gpubench.measuring.channel import Child
from gpubench.measuring.plan import Job, missing_devices
from gpubench.measuring.time_limits import LEAST_S, OPENED, Phase
from gpubench.measuring.worker import OfferedValue, RankResult
from gpubench.model import Device

WorkerChild = Child[RankResult | OfferedValue | Phase]
_Place = tuple[str, str, int]  # runtime, device and slot


class WorkerPool:
    """Worker processes by runtime, device and slot: started before or when needed, and replaced when they fail."""

    def __init__(self) -> None:
        self._workers: dict[_Place, WorkerChild] = {}

    def start(self, jobs: Iterable[Job]) -> None:
        """Start all plain workers that these jobs need on shared GPUs, and wait until each has its GPU or has ended."""
        needed = [job for job in jobs if not job.runtime and not missing_devices(job)]
        places = {place: device for job in needed for place, device in _places(job.rank_devices, "")}
        places = {place: device for place, device in places.items() if device.backend != "host" and _is_shared(device)}
        self._workers |= {place: _new_worker() for place in places}
        deadline = time.monotonic() + LEAST_S
        for place, device in places.items():
            with contextlib.suppress(OSError):
                self._workers[place].channel.send(device)
        for channel in (self._workers[place].channel for place in places):
            with contextlib.suppress(EOFError, OSError):
                while channel.poll(max(0.0, deadline - time.monotonic())) and channel.recv() != OPENED:
                    pass

    def workers_for(self, devices: Sequence[Device], runtime: str) -> list[WorkerChild]:
        """Return one worker process per rank, in the order of `devices`, which has one device per rank.

        Ranks on the same device get different workers. Workers of another runtime end; plain ones stay if they may."""
        kept = {runtime, *([""] if all(map(_is_shared, devices)) else [])}
        for worker in [worker for place, worker in self._workers.items() if place[0] not in kept]:
            self.end_worker(worker)
        workers = []
        for place, _ in _places(devices, runtime):
            there = self._workers.get(place)
            if there is not None and (there.process.poll() is not None or there.channel.is_waiting()):
                self.end_worker(there)  # it died between two cases, or sent a message without an order
            if place not in self._workers:
                self._workers[place] = _new_worker()
            workers.append(self._workers[place])
        return workers

    def end_worker(self, worker: WorkerChild) -> None:
        """End a worker; the next case that needs its slot gets a fresh one."""
        self._workers = {place: kept for place, kept in self._workers.items() if kept is not worker}
        worker.kill()

    def end_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._workers = {}


def _places(devices: Sequence[Device], runtime: str) -> Iterator[tuple[_Place, Device]]:
    """Yield the place of each rank's worker, and its device; `devices` has one device per rank."""
    for rank, device in enumerate(devices):
        yield (runtime, device.id, sum(other.id == device.id for other in devices[:rank])), device


def _is_shared(device: Device) -> bool:
    return dict(device.details).get("compute_mode", "0") == "0"  # in other modes one process at a time opens it


def _new_worker() -> WorkerChild:
    return Child("gpubench.measuring.worker", (RankResult, OfferedValue, Phase))
