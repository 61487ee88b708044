"""List the language models that the suites measure."""

from gpubench.api.language_models import LANGUAGE_MODELS, Layer, Model, mixture, model

__all__ = ["MODELS", "Layer", "Model", "mixture", "model"]

MODELS = {name: LANGUAGE_MODELS[name] for name in ("chatglm-6b", "llama-3-8b", "llama-3-70b")} | {
    "olmoe-1b-7b": mixture(2048, 1024, 16, 64, 8, 16, 50304, "allenai/OLMoE-1B-7B-0924, config.json")
}
