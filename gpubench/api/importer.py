"""What an importer of another tool's output is written with."""

from gpubench.base.errors import BadOutput
from gpubench.model import Case, Device, Params, Result, Series, SuiteInfo, View
from gpubench.plugins.importer import Imported, Importer

__all__ = ["BadOutput", "Case", "Device", "Imported", "Importer", "Params", "Result", "Series", "SuiteInfo", "View"]
