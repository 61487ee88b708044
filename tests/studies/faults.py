"""Print for each fault its status, the results that are kept, the processes that are left behind, and the time.

    bash ci/study.sh faults [PART OF A NAME]              faults of a case
    bash ci/study.sh faults --machine [PART OF A NAME]    faults of the machine
    bash ci/study.sh faults --kills 200                   SIGKILL at random moments

Each fault has a run of its own. A case with a fault stands between two without one: it must fail, be invalid or be ok
by itself, its reason is one line, the other two are ok, and the memory of the main process stays below 150 MiB. The
script ends with status 1 if a fault costs more than that. It takes about 10, 6 and 15 minutes.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

TESTS = Path(__file__).parents[1]
PLUGIN = str(TESTS / "plugin")
sys.path.insert(0, PLUGIN)

from _machine_faults import FAULTS, MachineFault, has_begun  # noqa: E402
from gpubench_faults.attacks import ATTACKS  # noqa: E402

from gpubench.base.errors import FileError  # noqa: E402
from gpubench.model.store import read_run  # noqa: E402

TOKEN = "GPUBENCH_FAULTS_TOKEN"  # this variable is in the environment of every process of a run
SLEEPER = "300.321"  # this argument marks a process that has no environment
MOST_MIB = 150  # the limit for the main process, which takes 50 MiB by itself
MEASURING = 0.75  # this share of the kills happens after the first record, the others during start-up
MOST_REASON = 500  # characters
RUN = (sys.executable, "-P", "-m", "gpubench", "run", "attacks", "--device", "host", "--tier", "smoke")
HARMLESS = ("--filter", "attacks/before", "--filter", "attacks/after", "--filter", "attacks/together")
RUNNER = """
import json, resource, sys, time
from pathlib import Path
from gpubench import plugins
from gpubench.measuring import plan as planning
from gpubench.measuring.recording import new_manifest
from gpubench.measuring.runner import Runner
from gpubench.measuring.sampler import SamplingProcess
from gpubench.model import Facts, Settings
from gpubench.model.store import RunWriter

facts = Facts(tuple(plugins.load("backends", "host").devices()))
plan = planning.make(facts, Settings(("attacks",), ("host",), "smoke"))
wanted = ("attacks/before", f"attacks/attack[what={sys.argv[2]}]", "attacks/after")
jobs = sorted((job for job in plan.jobs if job.case.id in wanted), key=lambda job: wanted.index(job.case.id))
marks = []

def watch(event):
    if event.result:
        marks.append((event.result.status, event.result.cause, event.result.reason, event.result.elapsed_s))

with RunWriter.create(Path(sys.argv[1]), new_manifest(facts, plan.settings, plan.suites, [])) as writer:
    with Runner(plan, SamplingProcess((), 0.0), writer) as runner:
        runner.run(jobs, 0.0, watch)
    writer.end()
print(json.dumps([marks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


class FaultRow(NamedTuple):
    """A row of a table, and whether the fault cost no more than it may."""

    cells: Sequence[str]
    is_sound: bool


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


def environment(token: str, mark: Path) -> dict[str, str]:
    """Return the environment of a run; code that must not be executed would create the file `mark`."""
    paths = os.pathsep.join(filter(None, [PLUGIN, os.environ.get("PYTHONPATH")]))
    ours = {"PYTHONPATH": paths, TOKEN: token, "GPUBENCH_FAULTS_MARK": str(mark), "GPUBENCH_HISTORY": "off"}
    return {**os.environ, **ours}


def running(token: str) -> list[psutil.Process]:
    """Return the running processes that have this token."""
    counts = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(TOKEN) == token or SLEEPER in process.cmdline()
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                counts.append(process)
        except psutil.Error:
            continue
    return counts


def left_behind(token: str, seconds: float = 5.0) -> int:
    """End the processes that still have this token after `seconds`, and return their number."""
    end = time.monotonic() + seconds
    while (left := running(token)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        process.kill()
    return len(left)


def case_fault(name: str, folder: Path) -> FaultRow:
    """Run a case with this fault between two others."""
    token, mark, path = f"{os.getpid()}-{name}", folder / "executed", folder / f"{secrets.token_hex(8)}.jsonl"
    command = [sys.executable, "-P", "-c", RUNNER, str(path), name]
    done = subprocess.run(command, env=environment(token, mark), capture_output=True, text=True, check=False)
    left = left_behind(token)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return FaultRow([name, "the run ended", "-", str(left), "-", "-", last_line[:110]], False)
    (before, fault, after), peak_mib = json.loads(done.stdout.strip().splitlines()[-1])
    status, cause, reason, seconds = fault
    kept = len(read_run(path).results)
    is_line = "\n" not in reason and len(reason) <= MOST_REASON and bool(reason) == (status != "ok")
    is_sound = before[0] == after[0] == "ok" and kept == 3 and not left and is_line
    cells = [name, f"{status} {cause}".strip(), f"{kept} of 3", str(left), f"{seconds:.1f}", f"{peak_mib:.0f}"]
    return FaultRow([*cells, reason[:110]], is_sound and not mark.exists() and peak_mib < MOST_MIB)


def machine_fault(name: str, fault: MachineFault, folder: Path) -> FaultRow:
    """Run three cases without a fault on a machine with this one."""
    token, place = f"{os.getpid()}-{name}", folder / secrets.token_hex(8)
    place.mkdir()
    path = fault.out(place)
    env = {key: value for key, value in {**environment(token, place), **fault.env}.items() if value is not None}
    command = [*fault.wrapper(place), *RUN, *HARMLESS, "--out", os.fsencode(path)]
    start = time.monotonic()
    with (place / "stderr").open("wb") as stderr:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": stderr, "cwd": place}
        run = subprocess.Popen(command, env=env, preexec_fn=fault.prepare, **streams)
        fault.meanwhile(run, path)
        status = run.wait(120)
    seconds = time.monotonic() - start
    left = left_behind(token)
    lines = (place / "stderr").read_text(errors="replace").strip().splitlines()
    kept, is_readable = results(place)
    is_told = status == 0 or bool(lines) or status < 0 or fault.is_mute
    is_sound = status in fault.statuses and "Traceback (most recent call last):" not in lines and not left
    cells = [name, str(status), f"{kept} of 3", str(left), f"{seconds:.1f}", (lines or [""])[-1][:110]]
    return FaultRow(cells, is_sound and is_told and (fault.is_mute or (is_readable and (kept == 3 or status != 0))))


def results(place: Path) -> tuple[int, bool]:
    """Return the number of results in the run file, and False if the file is damaged."""
    files = [file for file in place.rglob("*.jsonl*") if file.is_file() and not file.is_symlink()]
    if not files:
        return 0, True
    try:
        return len(read_run(files[0]).results), True
    except FileError:
        return 0, files[0].stat().st_size == 0


def table(heads: str, rows: Sequence[tuple[str, object]], measured: object) -> int:
    """Print each row as soon as it is measured; return the number of faults that cost too much."""
    columns = heads.split(" · ")
    say(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, fault in rows:
            row = measured(name, fault, Path(folder))
            bad += not row.is_sound
            say(f"| {' | '.join(row.cells)} |" + ("" if row.is_sound else " <- MORE THAN IT MAY"))
    say(f"{len(rows)} faults, {bad} cost more than they may")
    return bad


def kills(count: int) -> int:
    """Kill runs by SIGKILL at random moments; return how many lost a result or left a process."""
    chance, bad, finished = random.Random(0), 0, 0
    victims = {"gpubench": 0, "every process of the run": 0, "one of its children, then gpubench": 0}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            victim = chance.choice((*victims, "gpubench"))
            victims[victim] += 1
            token, path, seconds = (
                f"{os.getpid()}-kill-{number}",
                Path(folder, f"{number}.jsonl"),
                chance.uniform(0.0, 2.0),
            )
            before, after = killed(token, path, victim, seconds, chance)
            left = left_behind(token)
            finished += before
            if left or after < before:
                bad += 1
                cost = f"{left} processes left, {after} of {before} results"
                say(f"kill {number} of {victim} after {seconds:.2f} s: {cost}")
    say(", ".join(f"{times} of {victim}" for victim, times in victims.items()))
    say(f"{count} kills: {finished} results were finished before and are kept; {bad} lost a result or left a process")
    return bad


def killed(token: str, path: Path, victim: str, seconds: float, chance: random.Random) -> tuple[int, int]:
    """Return how many results a run file had when its run was killed, and how many are read from it."""
    command = [*RUN, *HARMLESS, "--replicates", "50", "--out", str(path)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    run = subprocess.Popen(command, env=environment(token, path), **quiet)
    if chance.random() < MEASURING:
        has_begun(run, path)
    time.sleep(seconds)
    children = [process for process in running(token) if process.pid != run.pid]
    if victim.startswith("one") and children:
        end(chance.choice(children).pid)
        time.sleep(chance.uniform(0.0, 1.0))
    finished = whole_results(path)
    end(run.pid)
    if victim.startswith("every"):
        for process in chance.sample(children, len(children)):
            end(process.pid)
    run.wait()
    return finished, len(read_run(path).results) if path.exists() and path.stat().st_size else 0


def whole_results(path: Path) -> int:
    """Return the number of completely written results."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return sum(json.loads(line)["kind"] == "result" for line in lines)


def end(pid: int) -> None:
    """Kill a process that may have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main(names: Sequence[str]) -> int:
    """Return the number of faults that cost too much."""
    if names[:1] == ["--kills"]:
        return kills(int(names[1]))
    if names[:1] == ["--machine"]:
        rows = [(name, fault) for name, fault in FAULTS.items() if " ".join(names[1:]) in name]
        return table("fault · status · results · orphans · s · last line", rows, machine_fault)
    attacks = [(name, attack) for name, attack in ATTACKS.items() if " ".join(names) in name]
    heads = "fault · status, cause · results · orphans · s · main process, MiB · reason"
    return table(heads, attacks, lambda name, attack, folder: case_fault(name, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
