"""Language models as matrices: for suites that measure their products, steps and prefills."""

from gpubench.knowledge.language_models import LANGUAGE_MODELS, Layer, Model, mixture, model

__all__ = ["LANGUAGE_MODELS", "Layer", "Model", "mixture", "model"]
