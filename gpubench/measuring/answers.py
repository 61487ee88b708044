"""Check the answers of a task: overwrite its outputs, call its stages, and compare, in step with the other ranks."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from gpubench.authoring.bench import poison
from gpubench.authoring.task import Observed, Profile, Stage, Task, no_values, nothing, observed
from gpubench.base.errors import Untrustworthy, WrongAnswer
from gpubench.measuring.time_limits import TimeLimits
from gpubench.plugins.backend import OpenDevice

T = TypeVar("T")


class Agree(Protocol):
    """Returns the deciding rank's value on every active rank. Because all ranks wait for it, it is a barrier too."""

    def __call__(self, value: T) -> T: ...


def agree_alone(value: T) -> T:
    """Return `value`: the agreement of a single rank with itself."""
    return value


def overwrite(task: Task, device: OpenDevice) -> None:
    """Let the task poison what it overwrites itself, and then poison the outputs of every stage, each array once."""
    task.poison()  # before the outputs, so that no work done there remains
    outputs = {id(array): array for stage in task.stages.values() for array in stage.outputs}
    poison(device, outputs.values())


UNCHECKED = "unchecked"  # the label of a case without a check, or whose check does not notice a corrupted output
_ELEMENTS = 3  # elements of each output that are corrupted before a check counts as dead
_DRAWS = 5  # places that are tried for each, because some outputs or parts of them are not written
# What a check may raise on a wrong value that it, or a decoder, does not expect.
_FINDINGS = (WrongAnswer, AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


def _set_bits(element: Any) -> None:
    """Set every bit of an element, as `poison` does."""
    element.view(f"i{min(element.itemsize, 8)}").fill(-1)


class AnswerChecks:
    """Overwrites the outputs of one task and checks them.

    All methods are collective: every rank that times something must call them."""

    def __init__(
        self,
        task: Task,
        device: OpenDevice,
        agree: Agree,
        rng: np.random.Generator,
        allowed_s: float,
        limits: TimeLimits | None = None,
    ) -> None:
        """Set up the checks of `task`, which is built on `device`."""
        self.task = task
        self.seconds = 0.0
        self.is_stale = True  # whether something was timed since the last check
        self._device = device
        self._is_first = True
        self._outputs = [array for stage in task.stages.values() for array in stage.outputs]
        stages = task.stages.values()
        written = {tuple(map(id, stage.outputs)) for stage in stages}
        self._are_alternatives = len(stages) > 1 and len(written) == 1 and () not in written
        self._agree = agree
        self._rng = rng
        self._allowed_s = allowed_s
        self._limits = limits or TimeLimits()

    def verify(self) -> dict[str, Observed | Profile]:
        """Overwrite the outputs, call every stage once, check, and return what the check observed, by name.

        Every rank that times something must call it."""
        start = self._device.now()
        observations = self._verify_calls({})
        is_cheap = self._agree(self._device.now() - start <= self._allowed_s)
        stages = self.task.stages.values()
        if is_cheap and not any(stage.rotation for stage in stages):
            self._verify_calls({})
        for name, stage in self.task.stages.items():
            self._verify_rotation(name, stage)
        return observations

    def is_dead(self) -> bool:
        """Return whether nothing is checked: there is no check, or it passes with a corrupted output or an old answer.

        The outputs must hold the answers of the present inputs. Afterwards the other inputs are in place."""
        if self.task.check is no_values:
            return not all(stage.checked for stage in self.task.stages.values())
        is_undeclared = any(stage.rotation and not stage.buffers for stage in self.task.stages.values())
        return is_undeclared or self._takes_corrupted() or self._takes_earlier_answer()

    def _takes_earlier_answer(self) -> bool:
        """Change the inputs, and return whether the check passes with the answers of the inputs before."""
        changes = self._input_changes()
        for change in changes:
            change()
        return bool(changes) and not self._refuses()

    def _input_changes(self) -> dict[Callable[[], object], None]:
        return dict.fromkeys(stage.inputs for stage in self.task.stages.values() if stage.inputs)

    def _takes_corrupted(self) -> bool:
        """Return whether the check passes with a corrupted element in each output, in three places of each."""
        outputs = [output if output.ndim else output.reshape(1) for output in self._outputs if output.size]
        corrupted = 0
        for _ in range(_ELEMENTS):  # all outputs at once: some are intermediate results, and a check may be long
            elements = [element for output in outputs if (element := self._written_element(output)) is not None]
            corrupted += len(elements)
            if elements and self._finds(elements):
                return False
        return corrupted > 0

    def expect_writes(self, stage: Stage, call: Callable[[], object], calls: int, most_s: float) -> None:
        """Raise WrongAnswer if one of `calls` calls, within `most_s` seconds, writes no element that has an answer."""
        start = self._device.now()
        drawn = (self._written_element(output) for output in stage.outputs if output.ndim and output.size)
        elements = [element for element in drawn if element is not None]
        for number in range(calls if elements else 0):
            for element in elements:
                _set_bits(element)
            call()
            self._device.synchronize()
            if not any(map(self._is_written, elements)):
                raise WrongAnswer(f"call {number + 1} of some in a row writes nothing")
            self._limits.report_progress()
            if self._device.now() - start > most_s:
                return

    def _written_element(self, output: Any) -> Any | None:
        """Return a random element of an array as an array of one element; None if none of some holds an answer."""
        for _ in range(_DRAWS):
            place = tuple(int(self._rng.integers(size)) for size in output.shape)
            element = output[tuple(slice(index, index + 1) for index in place)]
            if self._is_written(element):
                return element
        return None

    def _is_written(self, element: Any) -> bool:
        """Return whether the element has another value than `poison` gives."""
        return bool((self._device.to_host(element).view(np.uint8) != 0xFF).any())

    def _finds(self, elements: list[Any]) -> bool:
        """Return whether the check fails while every bit of the elements is set."""
        kept = [(element, element.copy()) for element in elements]
        for element in elements:
            _set_bits(element)
        try:
            return self._refuses()
        finally:
            for element, value in kept:
                element[...] = value

    def _refuses(self) -> bool:
        """Return whether the check finds a fault in the outputs as they are."""
        try:
            values = observed("the check", self.task.check()).values()
        except _FINDINGS:
            return True
        return not all(math.isfinite(value.value) for value in values if isinstance(value, Observed))

    def _verify_rotation(self, name: str, stage: Stage) -> None:
        """Check further calls in the rotation of the stage `name`, in random order, until the allowed time is over."""
        start, places = self._device.now(), self._rng.permutation(range(1, len(stage.rotation))).tolist()
        for place in places:
            self._verify_calls({name: stage.rotation[place]})
            if self._agree(self._device.now() - start > self._allowed_s):
                break
        if places and stage.buffers and self._agree is agree_alone:
            self._verify_buffers(name, stage, place)

    def _verify_buffers(self, name: str, stage: Stage, place: int) -> None:
        """Raise Untrustworthy unless the buffers exceed the cache, and the call at `place` depends on its own one."""
        addresses = {array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr for array in stage.buffers}
        nbytes, cache_bytes = sum(array.nbytes for array in stage.buffers), self._device.device.cache_bytes
        drawn = [self._written_element(output) for output in stage.outputs for _ in range(_ELEMENTS) if output.size]
        buffer, answers = stage.buffers[place], list[list[bytes]]()
        bits = buffer.view(f"u{min(buffer.itemsize, 8)}")
        for _ in range(2):  # with inverted bits, then as it was: the outputs hold the answer of this call again
            bits ^= bits.dtype.type(np.iinfo(bits.dtype).max)
            stage.rotation[place]()
            self._device.synchronize()
            answers.append([self._device.to_host(element).tobytes() for element in drawn if element is not None])
        is_same = bool(answers[0]) and answers[0] == answers[1]
        if is_same or len(addresses) < len(stage.buffers) or nbytes <= cache_bytes:
            message = "the calls in turn do not use buffers of their own that together exceed the last-level cache"
            raise Untrustworthy("one-buffer", f"{name or 'rotation'}: {message}")

    def _verify_calls(self, instead: Mapping[str, Callable[[], object]]) -> dict[str, Observed | Profile]:
        self._limits.calling(self.task.stages.values())
        self.overwrite()
        for place, (name, stage) in enumerate(self.task.stages.items()):
            if place and self._are_alternatives:  # the next one would hide the answer of the one before
                self.check()
                overwrite(self.task, self._device)
                self._device.synchronize()
            self._agree(None)
            instead.get(name, stage.call)()
        self._limits.waiting(self.task.stages.values())
        return self.check()

    def overwrite(self) -> None:
        """Put the other input in place, and poison the outputs; return when all ranks have done so.

        A call that writes nothing is found, and one that returns an earlier answer."""
        is_first, self._is_first = self._is_first, False
        for other_input in () if is_first else self._input_changes():
            self._device.synchronize()
            self._agree(None)  # no rank reads the present input any more
            other_input()
        overwrite(self.task, self._device)
        self._device.synchronize()
        self._agree(None)

    def around(self, timed: Stage, action: Callable[[], T]) -> T:
        """Overwrite the outputs, call every stage, `timed` by `action`, check, and return what `action` returned."""
        self._limits.calling(self.task.stages.values())
        self.overwrite()
        returned = self._call_stages(timed, action)
        self.check()
        return returned

    @property
    def can_touch(self) -> bool:
        """Return whether `beside` can imitate `around`: not a task's own poison, nor a processor's caches."""
        stages, outputs = self.task.stages.values(), self._outputs
        is_by_host = any(stage.waits for stage in stages) or any(isinstance(out, np.ndarray) for out in outputs)
        return self.task.poison is nothing and not (self._device.traits.is_gpu and is_by_host)

    def beside(self, timed: Stage, action: Callable[[], T]) -> T:
        """Do as `around`, but write the outputs with what they hold, and do not check: the control of its time."""
        for array in {id(array): array for array in self._outputs}.values():
            bits = array.view(f"i{min(array.itemsize, 8)}")
            bits |= 0
        self._device.synchronize()
        self._agree(None)
        return self._call_stages(timed, action)

    def _call_stages(self, timed: Stage, action: Callable[[], T]) -> T:
        """Call every stage that does not check itself or write the same outputs, with `action` in place of `timed`."""
        returned: list[T] = []
        for stage in self.task.stages.values():
            if stage is timed:
                returned.append(action())
            elif not stage.checked and not self._are_alternatives:
                stage.call()
        return returned[0]

    def check(self) -> dict[str, Observed | Profile]:
        """Check the outputs that the stages have written, and return what the task's check observed, by name.

        Every rank that times something must call it."""
        self._device.synchronize()
        self._agree(None)
        self._limits.checking(self.task.stages.values())
        start = self._device.now()
        observations = observed("the check", self.task.check())
        self.seconds = self._device.now() - start
        self.is_stale = False
        self._agree(None)
        return observations
