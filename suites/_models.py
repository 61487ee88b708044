"""The language models that suites measure, of those that the core knows."""

from gpubench.api.language_models import LANGUAGE_MODELS, Layer, Model, model

__all__ = ["MODELS", "Layer", "Model", "model"]

MODELS = {name: LANGUAGE_MODELS[name] for name in ("chatglm-6b", "llama-3-8b", "llama-3-70b")}
