"""Import torch, or say how to install it."""

import importlib
from typing import Any

from gpubench.api import suite as gb

_INSTALL = gb.installation.with_extra("torch")


def imported(is_gpu: bool = True, least: tuple[int, int] = (2, 0)) -> Any:
    """Return the module torch; raises Unavailable if it is not installed or older than `least`.

    With `is_gpu` it raises Unavailable too if torch finds no GPU."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise gb.Unavailable("torch is not installed", _INSTALL) from error
    if tuple(map(int, torch.__version__.split(".")[:2])) < least:
        raise gb.Unavailable(f"torch {torch.__version__} is older than {least[0]}.{least[1]}", f"{_INSTALL} --upgrade")
    if is_gpu and not torch.cuda.is_available():
        raise gb.Unavailable(f"torch {torch.__version__} finds no GPU", f"{_INSTALL}, in the build for this driver")
    return torch


def on_stream(bench: gb.Bench, least: tuple[int, int] = (2, 0)) -> Any:
    """Return the module torch, set to the stream that is timed; frees the memory that torch keeps unused.

    Raises Unavailable like `imported`."""
    torch = imported(bench.traits.is_gpu, least)
    if bench.traits.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.set_stream(torch.cuda.ExternalStream(bench.device.stream))
    return torch


def with_compiler(bench: gb.Bench, least: tuple[int, int] = (2, 0)) -> Any:
    """Like `on_stream`, with a compiler that is reset and works in this process alone: no worker is left."""
    torch = on_stream(bench, least)
    importlib.import_module("torch._inductor.config").compile_threads = 1  # type: ignore[attr-defined]
    torch.compiler.reset()
    return torch
