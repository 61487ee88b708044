"""What an importer of another tool's output is written with."""

from gpubench.base.errors import BadOutput
from gpubench.knowledge.language_models import LANGUAGE_MODELS, Model, model_named, model_of_size
from gpubench.model import Case, Device, Params, Result, Series, SuiteInfo, View, Work
from gpubench.plugins.importer import Imported, Importer

__all__ = [
    "LANGUAGE_MODELS",
    "BadOutput",
    "Case",
    "Device",
    "Imported",
    "Importer",
    "Model",
    "Params",
    "Result",
    "Series",
    "SuiteInfo",
    "View",
    "Work",
    "model_named",
    "model_of_size",
]
