"""Suspending programs: the controller's protocol, its time limits and its failures, on a real process that is stopped.

SIGSTOP stands for the driver's checkpoint: with no GPU the rest is what runs on one.
"""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import _suspended
import pytest
from _modules import suite_modules
from _suspended import HELD, UUID, state_of

from gpubench.api.libraries import DriverCallError
from gpubench.api.suite import Bench, HelperEndedError
from gpubench.base.errors import Skip, WrongAnswer
from gpubench.model import Case

CONTROLLER, SUSPENSION, SUSPEND = suite_modules("virtual", "_suspension", "_suspension", "_suspend")
TESTS = Path(__file__).parent
DIED = "the controller ended: killed by SIGKILL; last line: the controller"


@pytest.fixture
def bench(monkeypatch):
    """Yield a bench whose helpers can import the modules beside this one."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    made = Bench(None, Case("virtual", "suspend"), target=None, package="")
    yield made
    made.end_helpers()


@pytest.fixture
def child(bench):
    """Return a helper that holds memory and counts launches."""
    return bench.helper(_suspended.MemoryHolder, "the child")


@pytest.fixture
def controller(bench):
    """Return a function that starts a controller, which suspends processes in the way that it is told."""
    return lambda calls="SignalCheckpoints": CONTROLLER.Controller(bench, f"{_suspended.__name__}:{calls}")


@pytest.fixture
def signals(controller):
    return controller()


def has_ended(pid):
    """Return whether the process ends within five seconds; a zombie counts as ended."""
    deadline = time.monotonic() + 5
    while state_of(pid) not in ("", "Z", "X") and time.monotonic() < deadline:
        time.sleep(0.005)
    return state_of(pid) in ("", "Z", "X")


def test_a_suspended_program_continues_with_all_its_data_and_a_lost_word_is_found(child, signals):
    suspension = SUSPENSION.Suspension(signals, child, 10.0)
    for cycle in (1, 2):  # one controller serves every cycle
        child.ask(5, "run", 60)
        suspension.suspend()
        child.tell("glance")
        assert not child.has_answer(0.05), "it answered while it was suspended"
        assert state_of(child.pid) == "T"
        suspension.resume()
        assert child.answer(5) < 60 * cycle, "its work was over before it was suspended"
        state = child.ask(5, "look")
        SUSPENSION.expect_whole(state, 60 * cycle)
        assert suspension.downtime_s == pytest.approx(sum(suspension.seconds.values()))
        assert all(seconds > 0 for seconds in suspension.seconds.values())
    assert signals.started_s > signals.opened_s > 0
    child.ask(5, "damage", 77)
    with pytest.raises(WrongAnswer, match="1 words differ"):
        SUSPENSION.expect_whole(child.ask(5, "look"), 120)
    with pytest.raises(WrongAnswer, match="7 kernels have run, 8 were launched"):
        SUSPENSION.expect_whole(HELD.HeldState(0, 7, UUID), 8)


def test_the_downtime_is_a_fixed_part_and_seconds_for_each_gibibyte():
    split = SUSPEND.parts(3.1, 0.6, 4 * 2**30 + 2**21)
    assert {name: value.value for name, value in split.items()} == pytest.approx({"fixed": 0.6, "per GiB": 0.625})
    assert SUSPEND.parts(0.6, None, 2**21) == {}


@pytest.mark.parametrize(
    ("calls", "error", "said"),
    [
        ("RefusedCheckpoints", DriverCallError, "CUDA_ERROR_NOT_SUPPORTED"),
        pytest.param("RunningCheckpoints", WrongAnswer, "RUNNING", marks=pytest.mark.slow),
        pytest.param("DyingCheckpoints", HelperEndedError, DIED, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_that_fails_is_reported_by_its_cause_and_ends_the_child(child, controller, calls, error, said):
    failing = controller(calls)
    with pytest.raises(error, match=said):
        SUSPENSION.Suspension(failing, child, 10.0).suspend()
    assert has_ended(child.pid), "it was left stopped"
    if error is not HelperEndedError:
        assert failing.uuids() == [UUID], "the controller serves the next child"
        failing.end()


@pytest.mark.slow
def test_a_step_that_hangs_ends_the_child_and_the_controller_in_time(child, controller):
    hanging = controller("HangingCheckpoints")
    suspension = SUSPENSION.Suspension(hanging, child, 0.3)
    suspension.suspend()
    begin = time.monotonic()
    with pytest.raises(HelperEndedError, match=r"did not answer within 0\.3 s"):
        suspension.resume()
    assert time.monotonic() - begin < 5
    assert has_ended(child.pid)
    assert has_ended(hanging.pid)


@pytest.mark.slow
def test_the_death_of_a_suspended_child_is_a_refused_restore_and_leaves_nothing(child, signals):
    suspension = SUSPENSION.Suspension(signals, child, 10.0)
    suspension.suspend()
    os.kill(child.pid, signal.SIGKILL)
    has_ended(child.pid)
    with pytest.raises(DriverCallError, match="CUDA_ERROR_ILLEGAL_STATE from restore"):
        suspension.resume()
    with pytest.raises(HelperEndedError):
        child.ask(1, "look")


BINDINGS = """
class Error(int):
    name = "CUDA_SUCCESS"
def cuInit(flags): return (Error(0),)
def cuDriverGetVersion(): return (Error(0), {version})
def cuCheckpointProcessLock(pid, args): raise RuntimeError('Function "cuCheckpointProcessLock" not found')
class CUcheckpointLockArgs: pass
def cuDeviceGetCount(): return (Error(0), 0)
"""


TOO_OLD = r"CUDA 12\.8 \(570\) or newer; this driver is for CUDA 12\.4"


def with_bindings(tmp_path, monkeypatch, text):
    """Put a module `cuda.bindings.driver` with this text before the installed one."""
    package = tmp_path / "cuda" / "bindings"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "driver.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("raise ImportError('none here')", r"needs cuda-bindings \(none here\)"),
        pytest.param(BINDINGS.format(version=12040), TOO_OLD, marks=pytest.mark.slow),
    ],
)
def test_missing_bindings_and_a_driver_that_is_too_old_are_skips(bench, tmp_path, monkeypatch, text, need):
    with_bindings(tmp_path, monkeypatch, text)
    with pytest.raises(Skip, match=need):
        CONTROLLER.Controller(bench)


@pytest.mark.slow
def test_a_call_that_the_driver_or_the_bindings_do_not_have_is_a_skip_that_names_it(bench, tmp_path, monkeypatch):
    with_bindings(tmp_path, monkeypatch, BINDINGS.format(version=12090))
    opened = CONTROLLER.Controller(bench)
    with pytest.raises(Skip, match="cuCheckpointProcessLock"):
        opened.step("lock", 1.0, os.getpid(), 1000)
    with pytest.raises(Skip, match="migration needs cuda-bindings 13"):
        opened.step("restore", 1.0, os.getpid(), [(UUID, UUID)])
    with pytest.raises(Skip, match="cuCheckpointProcessUnlock"):
        opened.step("unlock", 1.0, os.getpid())
    opened.end()


def test_a_driver_that_suspends_nothing_is_a_skip_and_any_other_refusal_an_error():
    with pytest.raises(Skip, match="does not suspend programs here"), SUSPEND._skip_if_unsupported():
        raise DriverCallError("CUDA_ERROR_NOT_SUPPORTED from cuCheckpointProcessLock")
    with pytest.raises(DriverCallError), SUSPEND._skip_if_unsupported():
        raise DriverCallError("CUDA_ERROR_ILLEGAL_STATE from cuCheckpointProcessRestore")


class CountedDevice:
    """A device whose free bytes and processes a test sets; allocations on it are discarded."""

    def __init__(self, monkeypatch):
        """Prepare the device with 1 GiB free and one process on it."""
        self.free, self.processes = 2**30, 1
        runtime = SimpleNamespace(memset=lambda *_: None, deviceSynchronize=lambda: None)
        cuda = SimpleNamespace(Memory=lambda nbytes: SimpleNamespace(ptr=0, size=nbytes), runtime=runtime)
        self.xp = SimpleNamespace(cuda=cuda)
        self.device = SimpleNamespace(free_bytes=lambda: self.free)
        self.target = SimpleNamespace(device=None)
        monkeypatch.setattr(SUSPENSION.lib, "processes_on", lambda _: self.processes)


def test_suspending_a_program_leaves_one_process_fewer_and_one_that_stays_is_found(monkeypatch):
    device = CountedDevice(monkeypatch)
    use = SUSPENSION.DeviceUse(device)
    device.processes = 2
    use.look_for_child()
    device.processes = 3  # a partner has opened the program's memory
    before = use.now()
    device.processes, device.free = 2, 2**30 + 2**21
    use.expect_gone(2**21, before)
    device.processes = 3
    with pytest.raises(WrongAnswer, match="3 processes are on the device after one of 3 was suspended"):
        use.expect_gone(2**21, before)
    device.processes, device.free = 2, 2**30
    with pytest.raises(WrongAnswer, match="held 2097152 bytes, of which 0 are free"):
        use.expect_gone(2**21, before)


def test_host_memory_that_is_too_small_is_a_skip_with_the_bytes():
    with pytest.raises(Skip, match=f"needs {2 * 2**60 + 2**30} bytes of free host memory"):
        SUSPENSION.need_host_memory(2**60)
    SUSPENSION.need_host_memory(2**20)
    assert 0 < SUSPENSION.touch_host_memory(2**24) < 5


def test_in_a_migration_every_gpu_has_one_successor_and_a_full_turn_leads_back():
    uuids = [bytes([number]) * 16 for number in range(4)]
    following = dict(SUSPEND.rotation(uuids))
    assert sorted(following) == sorted(following.values()) == uuids
    place = uuids[2]
    for _ in uuids:
        assert following[place] != place
        place = following[place]
    assert place == uuids[2]


def test_a_program_that_has_not_moved_is_found_by_the_lists_of_processes_or_by_its_uuid():
    old, new = bytes(16), bytes(range(16))
    before = {old: 2, new: 0}
    # the UUID that the driver gives the program may be outdated
    SUSPEND.expect_moved(old, new, old, before, {old: 1, new: 1})
    with pytest.raises(WrongAnswer, match=f"processes on GPU {old.hex()} changed by 0, on {new.hex()} by 0"):
        SUSPEND.expect_moved(old, new, new, before, before)
    SUSPEND.expect_moved(old, new, new, {}, {})
    with pytest.raises(WrongAnswer, match=f"runs on GPU {old.hex()}, not on {new.hex()}"):
        SUSPEND.expect_moved(old, new, old, {}, {})
    assert SUSPENSION.uuid_bytes("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == new


def test_a_mask_of_devices_refuses_a_migration_with_its_reason(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(Skip, match=r"CUDA_VISIBLE_DEVICES is set.*unset it"):
        SUSPEND._need_one_model(None, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(Skip, match="needs two GPUs; the driver has 1"):
        SUSPEND._need_one_model(None, 1)
