"""Two runs on one device: reported at the start, labelled, refused with --exclusive; a crash frees the device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _command import in_process

from gpubench import plugins
from gpubench.base.errors import DeviceError, UsageError
from gpubench.measuring import claims as claiming
from gpubench.measuring import plan as planning
from gpubench.measuring.claims import Claims
from gpubench.model import Device, Facts, Settings
from gpubench.model.store import read_run
from gpubench.tools import session

PLUGIN = str(Path(__file__).parent / "plugin")
CHILDREN = os.pathsep.join((PLUGIN, str(Path(__file__).parent)))  # the clockwork device too
CARD = Device("cuda:0", "cupy", "card", "sm_90", uuid="GPU-1/2")
OTHER = Device("cuda:1", "cupy", "card", "sm_90", uuid="GPU-3")
HOLD = """
import sys, time
from gpubench.measuring.claims import Claims
from gpubench.model import Device
with Claims([Device("host", "host", "", "")], exclusive={exclusive}):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "gpubench"


@pytest.fixture
def held():
    """Yield a function that starts a process which claims the host until it is ended or killed."""
    holders = []

    def hold(exclusive=False):
        command = [sys.executable, "-P", "-c", HOLD.format(exclusive=exclusive)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        assert holder.stdout.readline() == "held\n"
        return holder

    yield hold
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_two_runs_notice_each_other_only_on_devices_that_both_use():
    with Claims([CARD]) as first, Claims([CARD, OTHER]) as second:
        assert [(claim.device, claim.is_exclusive) for claim in first.others(["cuda:0"])] == [("cuda:0", False)]
        assert [claim.device for claim in second.others(["cuda:0", "cuda:1"])] == ["cuda:0"]
        assert "measures on cuda:0 (process " in claiming.warning(second.others(["cuda:0"]))
    with Claims([CARD]) as alone:
        assert alone.others(["cuda:0"]) == []
        assert claiming.warning([]) == ""


def test_an_exclusive_run_neither_joins_nor_is_joined(runtime):
    with Claims([CARD]), pytest.raises(DeviceError, match="measures on cuda:0 and this run has --exclusive"):
        Claims([CARD], exclusive=True)
    with Claims([CARD], exclusive=True), pytest.raises(DeviceError, match="measures on cuda:0 with --exclusive"):
        Claims([CARD])
    assert DeviceError.exit_status == 6
    assert list(runtime.iterdir()) == [], "a refused run leaves no claim"


def test_a_killed_run_frees_its_device_and_its_file_is_removed(held, runtime):
    holder = held(exclusive=True)
    holder.kill()
    holder.wait()
    assert len(list(runtime.iterdir())) == 1
    with Claims([Device("host", "host", "", "")], exclusive=True) as claims:
        assert claims.others(["host"]) == []
        assert len(list(runtime.iterdir())) == 1


def test_a_folder_that_others_can_enter_is_not_used(runtime):
    runtime.mkdir(mode=0o755)
    with Claims([CARD]) as claims:
        assert "not a folder of this user alone" in claims.problem
        assert claims.others(["cuda:0"]) == []
    with pytest.raises(UsageError, match="--exclusive needs locks"):
        Claims([CARD], exclusive=True)


def test_the_runtime_folder_of_another_user_is_left_alone(tmp_path, monkeypatch):
    another_user = os.getuid() + 12345  # the user has changed, and the variable still names the folder of the first one
    monkeypatch.setattr(claiming.os, "getuid", lambda: another_user)
    try:
        with pytest.raises(PermissionError) as refused:
            claiming._runtime_folder()
        assert refused.value.filename == f"/tmp/gpubench-{another_user}"
        assert list(tmp_path.iterdir()) == []
    finally:
        Path(f"/tmp/gpubench-{another_user}").rmdir()


def test_a_run_beside_another_one_warns_and_labels_its_cases(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", CHILDREN)
    monkeypatch.syspath_prepend(PLUGIN)
    facts = Facts(tuple(plugins.load("backends", "clockwork").devices()))
    plan = planning.make(facts, Settings(("faults",), ("clockwork",), "smoke", filters=("ticking",)))
    out, lines = tmp_path / "run.jsonl", []
    with Claims(facts.devices):
        session.measure(plan, out, ["gpubench"], lambda event: None, tell=lines.append)
        with pytest.raises(DeviceError, match="this run has --exclusive"):
            session.measure(plan, tmp_path / "none.jsonl", ["gpubench"], lambda event: None, exclusive=True)
    assert [line for line in lines if "another run of gpubench measures on clockwork (process " in line]
    (result,) = read_run(out).results
    assert (result.status, result.labels) == ("ok", ("shared-device",))
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.slow
def test_the_command_refuses_a_device_in_use_with_status_6(held):
    held()
    refused = in_process("run", "latency", "--device", "host", "--tier", "smoke", "--exclusive")
    assert refused.returncode == 6, refused.stderr
    assert "this run has --exclusive" in refused.stderr
