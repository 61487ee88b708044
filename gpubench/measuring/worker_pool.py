"""Keep the worker processes of a run from case to case: one for each rank on a device."""

from collections.abc import Sequence

from gpubench.measuring.channel import Child
from gpubench.measuring.time_limits import Phase
from gpubench.measuring.worker import OfferedValue, RankResult
from gpubench.model import Device

WorkerChild = Child[RankResult | OfferedValue | Phase]


class WorkerPool:
    """Worker processes by device and slot: started when first needed, and replaced when they fail."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, int], WorkerChild] = {}
        self._runtime = ""

    def workers_for(self, devices: Sequence[Device], runtime: str) -> list[WorkerChild]:
        """Return one worker process per rank, in the order of `devices`, which has one device per rank.

        Ranks on the same device get different workers."""
        if runtime != self._runtime:
            self.end_all()
            self._runtime = runtime
        slots: dict[str, int] = {}
        workers = []
        for device in devices:
            slot = slots.get(device.id, 0)
            slots[device.id] = slot + 1
            key = (device.id, slot)
            worker = self._workers.get(key)
            if worker is not None and (worker.process.poll() is not None or worker.channel.is_waiting()):
                self.end_worker(worker)  # it died between two cases, or sent a message without an order
            if key not in self._workers:
                self._workers[key] = Child("gpubench.measuring.worker", (RankResult, OfferedValue, Phase))
            workers.append(self._workers[key])
        return workers

    def end_worker(self, worker: WorkerChild) -> None:
        """End a worker; the next case that needs its slot gets a fresh one."""
        self._workers = {key: kept for key, kept in self._workers.items() if kept is not worker}
        worker.kill()

    def end_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._workers = {}
