"""The inference suite: its cases by tier and device, and the counting of steps and prefills."""

import re
from pathlib import Path

import pytest
from _modules import room_module

from gpubench import plugins
from gpubench.analysis import peaks
from gpubench.authoring.axes import Target
from gpubench.measuring import plan
from gpubench.model import Device, Facts

SUITE = plugins.load("suites", "inference")
MODELS = room_module("suites", "_models").MODELS
H200 = Device("cuda:0", "cupy", "NVIDIA H200", "sm_90", memory_bytes=140 * 2**30, cache_bytes=60 * 2**20, units=132)
DOCS = Path(__file__).parents[1] / "docs" / "inference.md"
READ = 4.2e12  # B/s
PRODUCTS = 660e12  # FLOP/s


def ids(device=H200, tier="quick"):
    return [case.id.removeprefix("inference/") for case in SUITE.cases(Target(Facts((device,)), device, tier))]


def test_a_gpu_has_attention_steps_and_prefills_and_the_host_has_no_case():
    assert ids(plugins.load("backends", "host").devices()[0], "full") == []
    step = "step[model=llama-3-8b,weights=float16,batch={},context={}]"
    assert ids() == [
        *(f"decode_attention[batch={batch},context=4096,heads=32,kv_heads=8,dim=128]" for batch in (1, 8, 32)),
        "decode_attention[batch=32,context=4096,heads=64,kv_heads=8,dim=128]",
        *(step.format(batch, context) for batch, context in ((1, 2048), (16, 512))),
        "prefill[model=llama-3-8b,weights=float16,tokens=2048]",
        *(f"prefill_attention[tokens=2048,heads=32,kv_heads=8,dim=128,by={by}]" for by in ("triton", "unfused")),
    ]
    full = ids(tier="full")
    assert not any("llama-3-70b,weights=float16" in line for line in full)
    assert "step[model=chatglm-6b,weights=int4,batch=1,context=2048]" in full
    assert [line for line in full if "olmoe" in line] == [
        f"step[model=olmoe-1b-7b,weights=float16,batch={batch},context=2048]" for batch in (1, 16)
    ]
    assert "kv_pages[page=16,order=shuffled,batch=32,context=4096]" in full


def test_the_four_runs_of_the_documentation_have_every_case_of_the_full_tier_once():
    lines = re.findall(r"gpubench run inference --tier full (--filter .*)", DOCS.read_text())
    parts = [re.findall(r"--filter '?([^' ]+)'?", line) for line in lines]
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
def test_the_roof_of_a_step_of_llama_is_that_of_its_weights_and_its_cache(bits, batch, context, tokens_a_second):
    llama = MODELS["llama-3-8b"]
    work = llama.step(batch, context, llama.size * bits / 8)
    assert batch * peaks.roof(work, READ, PRODUCTS) / work.flops == pytest.approx(tokens_a_second, rel=0.01)


def test_the_roof_of_a_prefill_is_that_of_its_products():
    llama = MODELS["llama-3-8b"]
    work = llama.prefill(2048, 2.0 * llama.size)
    layers = llama.size - llama.head.size
    pairs = 2048 * 2049 / 2  # pairs of tokens: each attends to itself and to those before it
    assert work.flops == 2 * 2048 * layers + 2 * llama.head.size + 4 * 32 * 32 * 128 * pairs
    assert peaks.roof(work, READ, PRODUCTS) == PRODUCTS
