"""Kill ranks a hundred times over the phases of their work: every death is noticed and survived, with nothing left.

    bash ci/study.sh kills [COUNT] [DEVICE] [CASE]      default 100 on host, case death

The case abort has the deaths in an all-reduce of NCCL between two GPUs. Several of these commands may run at once, each
with a share of the deaths, which shortens the wait for processes to start; deaths in NCCL run alone, because kernels
that wait for each other must not take turns on a GPU with those of other processes.

Prints the longest times of each phase. The exit status is 1 if a case failed, a time is over its limit, or something is
left: a process, an open file, a file in /dev/shm.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from pathlib import Path

from gpubench.analysis.quantities import judged_values
from gpubench.measuring import inventory, keeper
from gpubench.measuring import plan as planning
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Remark, Result, Samples, Settings

_MOST_S = {
    ("death", ""): 1.0,  # seconds to detect the death
    ("death", "rebuild"): 3.0,  # seconds to build a new ring
    ("death", "staged"): 3.0,  # seconds to switch to the path through the host
    ("abort", ""): 1.0,
    ("abort", "abort"): 10.0,
    ("abort", "rebuild"): 10.0,  # seconds to create a new communicator
}
_CASE_S = 60.0
_SHM = Path("/dev/shm")


class DeathTimes:
    """A sink that keeps the times of each phase of death, and what went wrong."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        self.oldest_s = 0.0  # the oldest heartbeat of a living rank

    def result(self, result: Result) -> None:
        """Keep the times of a result by phase and stage, its oldest heartbeat, and a status that is not ok."""
        if result.status != "ok":
            self.wrong.append(f"{result.case.id}: {result.status}, {result.reason}")
        for series in result.series:
            if series.name == "oldest heartbeat":
                self.oldest_s = max(self.oldest_s, *series.values)
            if series.role == "primary":
                phase = dict(result.case.params).get("phase", "all-reduce")
                self.seconds[str(phase), series.stage] += map(float, judged_values(series))

    def samples(self, samples: Samples) -> None:
        del samples

    def remark(self, remark: Remark) -> None:
        del remark


def left_over() -> tuple[int, int, int]:
    """Return the numbers of processes below this one, of its open files, and of files in /dev/shm."""
    files = len(list(_SHM.iterdir())) if _SHM.is_dir() else 0
    return len(keeper.descendants(os.getpid())), len(list(Path("/proc/self/fd").iterdir())), files


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


def main(count: int, device: str, name: str) -> int:
    """Kill `count` ranks, in each phase of a case equally often; return the exit status."""
    facts = inventory.facts()
    plan = planning.make(facts, Settings(("patterns",), (device,), "full", filters=(f"patterns/{name}",)))
    rounds, sink, before, start = -(-count // len(plan.jobs)), DeathTimes(), left_over(), time.monotonic()
    with Runner(plan, SamplingProcess((), 0.0), sink, _CASE_S) as runner:
        for number in range(1, rounds + 1):
            runner.run(plan.jobs, 0.0, lambda event: None)
            say(f"{number * len(plan.jobs)} deaths so far, {len(sink.wrong)} of them with an error")
    say(f"{rounds * len(plan.jobs)} deaths in {time.monotonic() - start:.0f} s on {device}")
    for (phase, stage), seconds in sorted(sink.seconds.items()):
        say(f"  {phase:10} {stage or 'detect':8} {len(seconds):4} times, at most {max(seconds):.3f} s")
        most_s = _MOST_S[name, stage]
        if max(seconds) > most_s:
            sink.wrong.append(f"{phase}: {stage or 'detect'} took {max(seconds):.3f} s, more than {most_s} s")
    say(f"the oldest heartbeat of a living rank was {sink.oldest_s:.3f} s old")
    after = left_over()
    left = [now - then for now, then in zip(after, before, strict=True)]
    say(f"left behind: processes, open files, files in /dev/shm: {left}")
    if any(count > 0 for count in left):
        sink.wrong.append("something is left behind")
    say("\n".join(sink.wrong) or "nothing is wrong")
    return bool(sink.wrong)


if __name__ == "__main__":
    counted, opened, named = (*sys.argv[1:], *("100", "host", "death")[len(sys.argv) - 1 :])
    sys.exit(main(int(counted), opened, named))
