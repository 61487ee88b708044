"""Define an operator: its expression over arrays of any library, and its kernels by the names of providers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

EPSILON = 1e-5  # added to the variance by norms
VECTORS = ("weight", "bias", "mean", "variance", "scale", "shift")  # inputs of one row; all others are matrices

Array = Any  # of the provider's own library


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: its inputs by name, the number of its outputs, its expression, and its kernels by provider.

    `expression(xp, *inputs)` uses functions that NumPy, CuPy, torch and jax.numpy share, and returns one array or a
    tuple of them. A provider for which we write kernels has no operator without an entry in `kernels`."""

    name: str
    inputs: tuple[str, ...]
    expression: Callable[..., Any]
    kernels: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def outputs_of(self, xp: Any, *inputs: Array) -> tuple[Array, ...]:
        """Return the outputs of the expression as a tuple; `xp` is the module of the arrays, such as NumPy."""
        outputs = self.expression(xp, *inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)
