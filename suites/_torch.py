"""Import torch, or say how to install it."""

import importlib
from typing import Any

from gpubench.api import suite as gb

_INSTALL = gb.installation.with_extra("torch")


def imported(is_gpu: bool = True) -> Any:
    """Return the module torch; raises Unavailable if it is not installed, or if `is_gpu` and torch finds no GPU."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise gb.Unavailable("torch is not installed", _INSTALL) from error
    if is_gpu and not torch.cuda.is_available():
        raise gb.Unavailable(f"torch {torch.__version__} finds no GPU", f"{_INSTALL}, in the build for this driver")
    return torch
