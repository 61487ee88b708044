"""The inference suite: counting, the toy model, the scheduler on arithmetic clocks, scenarios whose checks can fail."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from _modules import room_module, suite_modules
from _poison import overwrite

from gpubench import plugins
from gpubench.analysis import serving
from gpubench.analysis.serving import ServingTimes, StepLine
from gpubench.authoring.axes import Target
from gpubench.authoring.bench import Bench
from gpubench.base.errors import WrongAnswer
from gpubench.measuring import plan
from gpubench.model import Case, Device, Facts

SUITE = plugins.load("suites", "inference")
TOY, STEPS, SCHEDULER, SCENARIOS = suite_modules("inference", "_toy", "_steps", "_scheduler", "_scenarios")
MODELS = room_module("suites", "_models").MODELS
H200 = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=140 * 2**30, cache_bytes=60 * 2**20, units=132)
DOCS = Path(__file__).parents[1] / "docs" / "inference.md"
READ = 4.2e12  # B/s
PRODUCTS = 660e12  # FLOP/s


def ids(device=H200, tier="quick"):
    return [case.id.removeprefix("inference/") for case in SUITE.cases(Target(Facts((device,)), device, tier))]


def host_bench(**params):
    """Return a bench on the host for a case with these parameters."""
    device = plugins.load("backends", "host").devices()[0]
    opened = plugins.load("backends", "host").open(device)
    target = Target(Facts((device,)), device, "smoke")
    return Bench(opened, Case("inference", "case", tuple(params.items())), target, SUITE.package, 1)


def test_a_gpu_has_attention_steps_and_prefills_and_the_host_has_the_toy():
    host = plugins.load("backends", "host").devices()[0]
    assert {line.partition("[")[0] for line in ids()} == {
        "decode_attention",
        "prefill_attention",
        "step",
        "prefill",
    }
    scenarios = {"single_stream", "multi_stream", "offline", "server"}
    assert {line.partition("[")[0] for line in ids(host)} == {"step", "prefill", *scenarios}
    assert "decode_attention[batch=32,context=4096,heads=32,kv_heads=8,dim=128]" in ids()
    assert [line for line in ids() if line.startswith("step[") and "int4" in line] == [
        f"step[model=llama-3-8b,weights=int4,batch={batch},context={context}]"
        for batch, context in ((1, 2048), (16, 512))
    ]
    assert len(ids()) == 11
    full = ids(tier="full")
    assert not any("llama-3-70b,weights=float16" in line for line in full)
    assert "step[model=chatglm-6b,weights=int4,batch=1,context=2048]" in full
    assert [line for line in full if "olmoe" in line] == [
        f"step[model=olmoe-1b-7b,weights=float16,batch={batch},context=2048]" for batch in (1, 16)
    ]
    assert "kv_pages[page=16,order=shuffled,batch=32,context=4096]" in full


def test_the_four_runs_of_the_documentation_have_every_case_of_the_full_tier_once():
    lines = re.findall(r"gpubench run inference --tier full (--filter .*)", DOCS.read_text())
    parts = [re.findall(r"--filter '?([^' ]+)'?", line) for line in lines if "loadgen" not in line]
    assert len(parts) == 4
    for line in ids(tier="full"):
        assert sum(plan.matches(line, part) for part in parts) == 1, line


@pytest.mark.parametrize(("name", "bytes_a_token"), [("llama-3-8b", 131_072), ("chatglm-6b", 458_752)])
def test_each_token_stores_keys_and_values_in_every_layer(name, bytes_a_token):
    assert MODELS[name].cache_bytes() == bytes_a_token


@pytest.mark.parametrize(
    ("bits", "batch", "context", "tokens_a_second"),
    [(16, 1, 1, 280), (4 + 16 / 128, 1, 1, 1085), (16, 64, 8192, 3200)],
)
def test_the_bound_of_a_step_of_llama_is_that_of_its_weights_and_its_cache(bits, batch, context, tokens_a_second):
    llama = MODELS["llama-3-8b"]
    work = llama.step(batch, context, llama.size * bits / 8)
    assert batch / serving.bound_s(work, READ, PRODUCTS) == pytest.approx(tokens_a_second, rel=0.01)


def test_the_bound_of_a_prefill_is_that_of_its_products():
    llama = MODELS["llama-3-8b"]
    work = llama.prefill(2048, 2.0 * llama.size)
    layers = llama.size - llama.head.size
    pairs = 2048 * 2049 / 2  # pairs of tokens: each attends to itself and to those before it
    assert work.flops == 2 * 2048 * layers + 2 * llama.head.size + 4 * 32 * 32 * 128 * pairs
    assert serving.bound_s(work, READ, PRODUCTS) == work.flops / PRODUCTS


def plain_logits(weights, sequence):
    """Return the logits behind a sequence, in loops over layers, tokens and heads."""
    shape, layers = weights.shape, weights.layers

    def norm(x, factors):
        return x / math.sqrt(np.mean(x**2) + 1e-5) * factors

    def rotated(head, place):
        half = shape.dim // 2
        turns = [np.exp(1j * place * 10_000.0 ** (-i / half)) for i in range(half)]
        turned = (head[:half] + 1j * head[half:]) * turns
        return np.concatenate([turned.real, turned.imag])

    stream = [weights.embedding[token].astype(float) for token in sequence]
    for w in layers:
        cached = []
        for place, x in enumerate(stream):
            qkv = w.qkv.astype(float) @ norm(x, w.before_attention)
            heads = qkv.reshape(-1, shape.dim)
            queries, keys = heads[: shape.heads], heads[shape.heads : shape.heads + shape.kv_heads]
            cached.append(([rotated(key, place) for key in keys], heads[shape.heads + shape.kv_heads :]))
            parts = []
            for head, query in enumerate(queries):
                kv = head // (shape.heads // shape.kv_heads)
                scores = np.array([rotated(query, place) @ keys[kv] for keys, _ in cached]) / math.sqrt(shape.dim)
                powers = np.exp(scores) / np.exp(scores).sum()
                parts.append(sum(power * values[kv] for power, (_, values) in zip(powers, cached, strict=True)))
            x = x + w.out.astype(float) @ np.concatenate(parts)
            gate, up = np.split(w.up.astype(float) @ norm(x, w.before_network), 2)
            stream[place] = x + w.down.astype(float) @ (gate / (1 + np.exp(-gate)) * up)
    return weights.head.astype(float) @ norm(stream[-1], weights.last_norm)


@pytest.fixture(scope="module")
def weights():
    return TOY.ToyWeights.drawn(TOY.TOY, np.random.default_rng(1))


def test_a_prefill_equals_a_plain_implementation_of_the_chain(weights):
    sequence = np.random.default_rng(2).integers(0, 512, 9)
    logits = TOY.ToyModel(weights, 1, 9, np.float64).prefill(0, sequence)
    np.testing.assert_allclose(logits, plain_logits(weights, sequence), rtol=0, atol=1e-9)


def test_steps_over_a_cache_give_the_logits_of_one_prefill_of_the_whole_sequence(weights):
    rng = np.random.default_rng(3)
    model, sequences = TOY.ToyModel(weights, 3, 20), rng.integers(0, 512, (3, 20))
    starts = (5, 1, 12)
    for slot, start in enumerate(starts):
        model.prefill(slot, sequences[slot, :start])
    for place in range(8):
        tokens = np.array([sequences[slot, start + place] for slot, start in enumerate(starts)])
        logits = model.step(np.arange(3), tokens)
    for slot, start in enumerate(starts):
        exact = TOY.ToyModel(weights, 1, 20, np.float64).prefill(0, sequences[slot, : start + 8])
        assert np.linalg.norm(logits[slot] - exact) < 1e-5 * np.linalg.norm(exact)


def test_the_check_of_a_step_finds_a_wrong_cache_and_unwritten_logits():
    step = STEPS.ToyStep(host_bench(), 2, 6)
    step()
    assert step.check()["error"].value < 1e-5
    assert step.check()["differing"].value == 0
    overwrite(step)
    with pytest.raises(WrongAnswer, match="not written"):
        step.check()
    step.model.keys[0, :, 0, 2] += 1
    step()
    with pytest.raises(WrongAnswer, match="relative error"):
        step.check()


def scenario_of(queries):
    return SCENARIOS.open_scenario(host_bench(), "toy", "float32", 8, 4, queries)


class ArithmeticMachine:
    """A machine and its clock: time passes only by the measured times of prefills and steps."""

    def __init__(self, times):
        self.times, self.sizes, self.moment, self.lengths = times, sorted(times.steps), 0.0, {}
        self.device_s = 0.0

    def now(self):
        return self.moment

    def wait_until(self, moment):
        self.moment = max(self.moment, moment)

    def prefill(self, slot, prompt):
        """Advance the clock by the time of a prefill and remember the length of the slot."""
        self.moment += self.times.prefill_s(len(prompt))
        self.lengths[slot] = len(prompt)
        return 0

    def step(self, slots, tokens):
        """Return the next tokens of the sequences in these slots, and move the clock by the modelled time."""
        context = sum(self.lengths[slot] for slot in slots)
        self.moment += self.times.lines()[len(slots)].seconds(len(slots), context, 1)
        for slot in slots:
            self.lengths[slot] += 1
        return tokens + 1


TIMES = ServingTimes({10: 0.01}, {1: StepLine(0.010, 1e-5), 2: StepLine(0.012, 1e-5), 4: StepLine(0.016, 1e-5)})


@pytest.mark.parametrize("rate", [2, 10, 30])
def test_the_scheduler_and_its_simulation_serve_every_query_at_the_same_moments(rate):
    machine, arrivals = ArithmeticMachine(TIMES), serving.poisson(rate, 200, seed=5)
    prompts = [np.zeros(10, np.int64)] * 200
    session = SCHEDULER.serve(machine, prompts, arrivals.tolist(), 6, machine)
    simulated = serving.simulate(TIMES, arrivals, 10, 6)
    np.testing.assert_allclose(session.first_token_s, simulated.first_token_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(session.whole_s, simulated.whole_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(session.token_s, simulated.token_s, rtol=0, atol=1e-9)


def test_a_session_knows_how_long_its_calls_took_and_how_many_tokens_they_had():
    """Three queries of 10 tokens at once, of 4 tokens each: three prefills, and three steps in a batch of four."""
    machine = ArithmeticMachine(TIMES)
    calls = SCHEDULER.serve(machine, [np.zeros(10, np.int64)] * 3, [0.0] * 3, 4, machine).calls
    assert {size: (times.calls, times.context) for size, times in calls.items()} == {0: (3, 0), 4: (3, 33 + 36 + 39)}
    assert calls[0].seconds == pytest.approx(0.03)
    assert calls[4].seconds == pytest.approx(3 * 0.016 + 1e-5 * (33 + 36 + 39))


def test_every_query_has_its_tokens_in_order():
    machine = ArithmeticMachine(TIMES)
    session = SCHEDULER.serve(machine, [np.zeros(10, np.int64)] * 9, [0.0] * 9, 5, machine)
    assert [answer.tokens for answer in session.answers] == [[0, 1, 2, 3, 4]] * 9


def test_a_latency_begins_at_the_scheduled_arrival_of_the_query():
    """The second query arrives while the first is prefilled, for 10 ms."""
    machine = ArithmeticMachine(TIMES)
    session = SCHEDULER.serve(machine, [np.zeros(10, np.int64)] * 2, [0.0, 0.004], 1, machine)
    assert session.answers[1].noticed == pytest.approx(0.010)
    assert session.first_token_s[1] == pytest.approx(0.016)
    assert session.late == 1


def test_padding_rows_of_a_batch_are_counted():
    """Three queries at once run in a batch of four."""
    machine = ArithmeticMachine(TIMES)
    assert SCHEDULER.serve(machine, [np.zeros(10, np.int64)] * 3, [0.0] * 3, 3, machine).padded == 0.25


def test_the_check_of_a_scenario_sees_missing_tokens_and_tokens_that_do_not_follow():
    scenario = scenario_of(3)
    with pytest.raises(WrongAnswer, match="no session"):
        scenario.check()
    scenario.run(scenario.prompts, [0.0] * 3)
    scenario.check()
    for answer in scenario.session.answers:
        answer.tokens[-1] = (answer.tokens[-1] + 1) % 512
    with pytest.raises(WrongAnswer, match="below that of another"):
        scenario.check()
    scenario.session.answers[0].tokens.pop()
    with pytest.raises(WrongAnswer, match=r"answers have \[3, 4\] tokens"):
        scenario.check()


def test_padding_rows_of_a_batch_change_no_answer():
    """Five queries run in batches of eight; each one alone runs in batches of one."""
    together, alone = (scenario_of(5) for _ in range(2))
    answers = together.run(together.prompts, [0.0] * 5).answers
    assert [answer.tokens for answer in answers] == [
        alone.run([prompt], [0.0]).answers[0].tokens for prompt in alone.prompts
    ]


def test_the_hosts_clock_waits_until_the_given_time():
    clock = SCHEDULER.HostClock()
    clock.wait_until(0.002)
    assert 0.002 <= clock.now() < 0.5
