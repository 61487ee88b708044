"""The table of language models against the numbers of parameters that their publishers state."""

import pytest

from gpubench.knowledge import language_models
from gpubench.knowledge.language_models import LANGUAGE_MODELS

# From the model cards and the indices of the checkpoints. The publishers of ChatGLM state no exact number.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_model_is_found_by_the_number_of_parameters_that_its_publisher_states(name, parameters):
    assert language_models.model_of_size(parameters) == name


def test_each_model_is_found_by_its_own_name_and_an_unlisted_size_by_none():
    assert language_models.model_of_size(1_100_048_384) == ""
    assert [language_models.model_named(name) for name in LANGUAGE_MODELS] == list(LANGUAGE_MODELS)
    assert [name for name, model in LANGUAGE_MODELS.items() if not model.is_gated or model.norm == "layer"] == [
        "chatglm-6b"
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3-70b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3-70b"),
        ("meta-llama/Llama-3.2-1B", "llama-3.2-1b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("THUDM/chatglm-6b", "chatglm-6b"),
        ("THUDM/chatglm2-6b", ""),
        ("Qwen/Qwen2.5-VL-7B-Instruct", ""),
        ("Qwen/Qwen2.5-0.5B", ""),
        ("meta-llama/Llama-3.2-11B-Vision", ""),
        ("mistralai/Mixtral-8x7B-v0.1", ""),
        ("qwen3-80b", ""),
    ],
)
def test_a_model_is_found_by_its_published_name_and_not_by_a_similar_one(name, expected):
    assert language_models.model_named(name) == expected


def test_a_token_of_a_mixture_is_multiplied_with_its_experts_alone():
    """OLMoE-1B-7B: 6.9 billion parameters, of which a token uses 1.3 billion (https://arxiv.org/abs/2409.02060)."""
    model = language_models.mixture(2048, 1024, 16, 64, 8, 16, 50304, "allenai/OLMoE-1B-7B-0924, config.json")
    assert model.parameters == pytest.approx(6.92e9, rel=2e-3)
    assert model.active_size + model.head.size == pytest.approx(1.28e9, rel=5e-3)
    assert model.is_gated
    assert model.step(1, 0, 0.0).flops == 2 * model.active_size
