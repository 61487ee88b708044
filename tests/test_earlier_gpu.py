"""On a real GPU (`pytest -m gpu`): each case of two inputs passes with both, and finds a copy of an earlier answer."""

import pytest
from _earlier import check_in_turn, with_earlier_answers

from gpubench import plugins
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import Skip, Unavailable, WrongAnswer
from gpubench.measuring import inventory

pytestmark = pytest.mark.gpu


def is_found(task, gpu):
    """Return whether the check finds earlier answers, or True if the arrays of the answers are not known here."""
    if not any(stage.outputs for stage in task.stages.values()):
        return True
    try:
        check_in_turn(with_earlier_answers(task), gpu)
    except WrongAnswer:
        return True
    return False


@pytest.mark.parametrize("name", ["bandwidth", "gemm", "tensor", "latency", "inference", "compilers", "ipc"])
def test_every_case_of_one_rank_finds_a_copy_of_its_earlier_answer(gpu, name):
    suite, facts = plugins.load("suites", name), inventory.facts()
    target = Target(facts, gpu.device, "smoke")
    tried, missed = [], []
    for case in (case for case in suite.cases(target) if (case.ranks, case.devices) == (1, 1)):
        try:
            task = suite.build(Bench(gpu, case, target, suite.package, 1, devices=(gpu.device,)))
        except (Skip, Unavailable):
            continue
        if any(stage.inputs for stage in task.stages.values()):
            tried.append(case.id)
            check_in_turn(task, gpu)
            missed += [] if is_found(task, gpu) else [case.id]
        gpu.synchronize()
        task.close()
        del task
        gpu.release()
    assert missed == []
    assert tried
