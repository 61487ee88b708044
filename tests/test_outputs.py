"""A stage declares its outputs, and the engine poisons them before each check, on the host and on a GPU."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from _modules import opened

from gpubench.authoring.bench import poison
from gpubench.authoring.effort import Effort
from gpubench.authoring.task import Stage, Task, expect, no_values, nothing
from gpubench.base.errors import SuiteError, WrongAnswer
from gpubench.measuring.answers import AnswerChecks, agree_alone
from gpubench.measuring.engine import Engine
from gpubench.measuring.stopping import POLICIES


@pytest.fixture
def device():
    return opened("clockwork")


class GpuOfNumPy:
    """A GPU that copies to host memory, and notes the bytes of each copy and each wait."""

    traits = SimpleNamespace(is_gpu=True)
    xp = np

    def __init__(self):
        self.noted = []

    def synchronize(self):
        self.noted.append("wait")

    def copy(self, target, source):
        assert (target == -1).all(), "the processor writes before the device"
        target[:] = source
        self.noted.append(target.nbytes)


def test_the_outputs_of_all_stages_are_poisoned_before_each_check_and_after_the_task_poisons(device):
    real, whole = np.zeros(4, np.float32), np.zeros((4, 3), np.uint16)[:, 1]
    kernel, events, fresh = device.kernel('{"seconds": 0.1}', "launch", {}), [], {}

    def write(output):
        if fresh.pop(id(output), False):
            is_poison = np.isnan(output) if output is real else output == 0xFFFF
            expect(bool(is_poison.all()), "an output is not poisoned")
        output.fill(1)
        kernel((1,), (1,), ())

    def overwrite():
        events.append("poison")
        real.fill(1)  # the work of the call that is checked
        fresh.update({id(real): True, id(whole): True})

    def check():
        events.append("check")
        expect(bool((real == 1).all() and (whole == 1).all()), "an output is wrong")

    effort = Effort.exactly(3)
    stages = {
        "real": Stage(lambda: write(real), outputs=(real,), effort=effort),
        "whole": Stage(lambda: write(whole), outputs=[whole, whole], effort=effort),
    }
    Engine(device, POLICIES["smoke"]).measure(Task(stages, check, overwrite))
    assert events[:2] == ["poison", "check"]
    assert events.count("poison") > 2


def test_a_call_that_writes_nothing_is_a_wrong_answer_without_a_function_that_poisons(device):
    out = np.ones(4)
    task = Task.of(Stage(nothing, outputs=(out,)), check=lambda: expect(bool((out == 1).all()), "nothing was written"))
    with pytest.raises(WrongAnswer, match="nothing was written"):
        Engine(device, POLICIES["smoke"]).verify(task)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_a_poisoned_float_is_nan_and_so_is_every_half_in_its_bits(device, dtype):
    array = np.zeros(8, dtype)
    poison(device, [array])
    assert np.isnan(array).all()
    assert np.isnan(array.view(np.float16)).all()


@pytest.mark.parametrize(("dtype", "value"), [("int8", -1), ("uint32", 2**32 - 1), ("uint64", 2**64 - 1)])
def test_a_poisoned_whole_number_has_all_bits_set(device, dtype, value):
    array = np.zeros((3, 4), dtype)
    poison(device, [array[:, 2], np.zeros(0, dtype)])
    assert array.tolist() == [[0, 0, value, 0]] * 3


def test_memory_is_overwritten_by_the_processor_or_by_the_gpu_that_has_it():
    filled = []
    words = SimpleNamespace(fill=filled.append)
    poison(gpu := GpuOfNumPy(), [SimpleNamespace(itemsize=2, view=lambda dtype: filled.append(dtype) or words)])
    assert (filled, gpu.noted) == (["i2", -1], [])
    gpu, pinned = GpuOfNumPy(), np.zeros(2**24 + 24, np.uint8)
    poison(gpu, [pinned.view(np.float64), np.zeros(0)])
    assert gpu.noted == ["wait", 2**24, 24, "wait"]
    assert (pinned == 0xFF).all()


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        (np.zeros(2), "Stage.outputs is ndarray array([0., 0.]), not a tuple of arrays"),
        (memoryview(bytearray(8)), ", not a tuple of arrays"),
        ([memoryview(bytearray(8))], ", not an array of numbers; overwrite anything else in Task.poison"),
        (([np.zeros(2)],), "Stage.outputs is list [array([0., 0.])], not an array of numbers"),
        ((np.zeros(2), None), "Stage.outputs is NoneType None, not an array of numbers"),
        ((np.array(["a"]),), ", not an array of numbers"),
        ((np.frombuffer(bytes(8)),), "Stage.outputs has an array of 8 bytes that is read-only"),
    ],
)
def test_outputs_that_cannot_be_overwritten_are_refused(outputs, problem):
    with pytest.raises(SuiteError, match=re.escape(problem)):
        Stage(nothing, outputs=outputs)
    on_device = SimpleNamespace(dtype=np.dtype("float16"), nbytes=8, fill=nothing, flags=SimpleNamespace())
    arrays = [np.zeros(2), np.frombuffer(bytearray(8), np.uint8), np.zeros((3, 4))[:, 1], on_device]
    made = Task.of(Stage(nothing, outputs=arrays), check=no_values)
    assert [id(array) for array in made.stages[""].outputs] == [id(array) for array in arrays], "of host or device"


def labels(check, *outputs, call=None, **stage):
    device = opened("clockwork")

    def fill():
        device.spend(0.001)
        for output in outputs:
            output[...] = 1

    timed = Stage(call or fill, outputs=outputs, effort=Effort.exactly(3), **stage)
    return Engine(device, POLICIES["smoke"]).measure(Task.of(timed, check=check)).labels


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex128", "int8", "uint64"])
def test_a_check_that_does_not_notice_a_corrupted_element_leaves_the_case_unchecked(dtype):
    out = np.zeros((3, 4), dtype)
    assert labels(lambda: expect(bool((out == 1).all()), "an element is wrong"), out) == ()
    assert labels(lambda: expect(out.size == 12, "never wrong"), out) == ("unchecked",)
    assert (out == 1).all(), "the element has its value again"


def test_all_outputs_are_corrupted_at_once_so_that_a_long_check_is_called_few_times():
    scratch, answer, checks = [np.zeros(4) for _ in range(50)], np.zeros(4), []

    def check():
        checks.append(1)
        expect(bool((answer == 1).all()), "an element is wrong")

    assert labels(check, *scratch, answer) == ()
    assert len(checks) < 10
    assert all((output == 1).all() for output in (*scratch, answer)), "each element has its value again"


@pytest.mark.parametrize("idle", [9, 70])
def test_each_of_some_calls_in_a_row_writes_an_output(device, idle):
    calls, out = [], np.ones(8)

    def call():
        calls.append(1)
        if len(calls) != idle:
            out[:4] = 1

    stage = Stage(call, outputs=(out,))
    answers = AnswerChecks(Task.of(stage, check=no_values), device, agree_alone, np.random.default_rng(0), 1.0)
    out[4:].view(np.int64).fill(-1)  # this half is never written
    if idle > 64:
        answers.expect_writes(stage, call, 64, 1.0)
        return
    with pytest.raises(WrongAnswer, match="call 9 of some in a row writes nothing"):
        answers.expect_writes(stage, call, 64, 1.0)


@pytest.mark.parametrize("idle", ["first", "second", ""])
def test_of_stages_that_write_the_same_outputs_each_is_checked_by_itself(device, idle):
    out = np.zeros(4)

    def stage(name):
        return Stage(lambda: (device.spend(0.001), name == idle or out.fill(1)), outputs=(out,))

    task = Task({name: stage(name) for name in ("first", "second")}, lambda: expect(bool((out == 1).all()), "wrong"))
    engine = Engine(device, POLICIES["smoke"])
    if idle:
        with pytest.raises(WrongAnswer):
            engine.verify(task)
    else:
        assert [series.stage for series in engine.measure(task).series if series.mode == "hot"] == ["first", "second"]


def test_a_case_without_a_check_is_unchecked_unless_each_call_checks_itself():
    assert labels(no_values) == ("unchecked",)
    assert labels(no_values, call=lambda: 1.0, clock="self", checked=True) == ()
    out = np.zeros(8)

    def decode():
        [0][int(out.max()) - 1]

    assert labels(lambda: {"sum": float(out.sum())}, out) == ()
    assert labels(decode, out) == ()
    unwritten = np.zeros(8)  # what is never written is not corrupted
    assert labels(nothing, unwritten, call=lambda: 1.0, clock="self") == ()
