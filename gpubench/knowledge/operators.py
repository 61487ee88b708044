"""Count the bytes and operations that an operator of PyTorch cannot avoid, from the recorded shapes of its inputs.

Each input is read once and each output written once, whatever kernel computes it. The signatures
are in ATen's `native_functions.yaml` (https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/native_functions.yaml)."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpubench.model import Work

ITEM_BYTES = {
    **dict.fromkeys(("bool", "unsigned char", "signed char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short int", "short"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
}
_LIMITS = {
    "c10::BFloat16": "tensor.bfloat16",
    "c10::Half": "tensor.float16",
    "c10::Float8_e4m3fn": "tensor.float8",
    "c10::Float8_e5m2": "tensor.float8",
    "float": "float32",
    "double": "tensor.float64",
}
_PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "_scaled_mm": 0, "_int_mm": 0}  # place of the first factor
# Operators whose output is as large as their largest input, each element of which they read once.
_BY_ELEMENT = frozenset(
    re.findall(
        r"\w+",
        "add sub rsub mul div pow neg abs exp log log2 sqrt rsqrt reciprocal cos sin tanh sigmoid relu gelu silu "
        "mish erf "
        "clone contiguous _to_copy to where clamp clamp_min clamp_max addcmul addcdiv lerp masked_fill maximum minimum "
        "eq ne lt le gt ge logical_not logical_and bitwise_not bitwise_and floor_divide remainder triu tril dropout "
        "native_dropout native_dropout_backward threshold_backward gelu_backward silu_backward tanh_backward "
        "sigmoid_backward _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm "
        "native_layer_norm_backward native_group_norm native_batch_norm cudnn_batch_norm _fused_rms_norm cumsum "
        "flip roll "
        "nll_loss_backward isnan isinf sign square",
    )
)
_READ_ONLY = frozenset(
    re.findall(
        r"\w+",
        "sum mean max min amax amin argmax argmin norm linalg_vector_norm var var_mean std any all nll_loss_forward "
        "nll_loss2d_forward _local_scalar_dense item nonzero",
    )
)
_WRITE_ONLY = frozenset(
    re.findall(
        r"\w+",
        "fill zero normal uniform random bernoulli exponential arange full ones zeros",
    )
)
# Attention: the place of the query, the axis of the keys' positions, the place of the flag for a causal mask, and the
# products relative to the forward pass, whose two products a backward pass repeats and adds three to.
_ATTENTION = {
    "_scaled_dot_product_flash_attention": (0, 2, 4, 1.0),
    "_scaled_dot_product_efficient_attention": (0, 2, 6, 1.0),
    "_scaled_dot_product_cudnn_attention": (0, 2, 6, 1.0),
    "_cudnn_attention_forward": (0, 2, 10, 1.0),
    "_flash_attention_forward": (0, 1, 8, 1.0),
    "_efficient_attention_forward": (0, 1, 8, 1.0),
    "_scaled_dot_product_flash_attention_backward": (1, 2, 11, 2.5),
    "_scaled_dot_product_cudnn_attention_backward": (1, 2, 14, 2.5),
    "_scaled_dot_product_efficient_attention_backward": (1, 2, 11, 2.5),
    "_flash_attention_backward": (1, 1, 11, 2.5),
    "_cudnn_attention_backward": (1, 2, 14, 2.5),
}
_NUMBERS = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Operator:
    """A recorded call: the name, and for each argument the shape, the type, and the value as text where recorded."""

    name: str
    shapes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def bare(self) -> str:
        """The name without namespace and without the underscore of a call that writes into its first argument."""
        name = self.name.rpartition("::")[2]
        return name.removesuffix("_")

    def numel(self, place: int) -> float:
        """Return the number of elements of an argument; raises LookupError if its shape is not recorded."""
        shape = self.shapes[place]
        if not isinstance(shape, tuple) or not shape or not all(isinstance(side, int) for side in shape):
            raise LookupError("shape not recorded")
        return float(math.prod(shape))

    def size(self, place: int) -> float:
        """Return the bytes of an argument; raises LookupError if its shape or its type is not recorded."""
        return self.numel(place) * ITEM_BYTES[self.types[place]]

    @property
    def tensors(self) -> list[int]:
        """The places of the arguments that are tensors with a recorded shape and type."""
        pairs = enumerate(zip(self.shapes, self.types, strict=False))
        return [place for place, (shape, kind) in pairs if shape and kind in ITEM_BYTES]


@dataclass(frozen=True, slots=True)
class Counted:
    """The unavoidable work of an operator, and the peak that bounds its operations; empty if memory alone does."""

    work: Work
    limit: str = ""


def counted(operator: Operator) -> Counted | str:
    """Return the unavoidable work of one call, or the reason, a clause, why it is unknown."""
    if not operator.shapes:
        return "its shapes were not recorded"
    if any(kind in ("TensorList", "GenericList") for kind in operator.types) and operator.bare not in _READ_ONLY:
        return "the types in a list of tensors are not recorded"
    try:
        rule = _rule(operator)
        if rule is None:
            return "gpubench has no rule for this operator"
        return rule(operator)
    except (LookupError, ValueError):
        return "not all of its shapes and types were recorded"


def _rule(operator: Operator) -> Callable[[Operator], Counted] | None:
    name = operator.bare
    if name in _PRODUCTS:
        return _product
    if name in _ATTENTION:
        return _attention
    if name in ("cudnn_convolution", "convolution_backward"):
        return _convolution
    if name in ("index_select", "embedding", "embedding_dense_backward"):
        return _rows
    if operator.name.startswith("triton_") or name == "copy":
        return lambda one: Counted(Work(moved=sum(map(one.size, one.tensors))))
    if name in _READ_ONLY:
        return lambda one: Counted(Work(moved=sum(map(one.size, _some(one)))))
    if name in _WRITE_ONLY:
        return lambda one: Counted(Work(moved=one.size(0)))
    return _by_element if name in _BY_ELEMENT else None


def _some(operator: Operator) -> Sequence[int]:
    """Return the places of the tensors of an operator; raises LookupError if there is none."""
    if not operator.tensors:
        raise LookupError("no tensor")
    return operator.tensors


def _by_element(operator: Operator) -> Counted:
    sizes = [operator.size(place) for place in _some(operator)]
    output = sizes[0] if operator.name.endswith("_") else max(sizes)
    return Counted(Work(moved=sum(sizes) + output))


def _product(operator: Operator) -> Counted:
    first = _PRODUCTS[operator.bare]
    *batch, rows, inner = operator.shapes[first]
    columns = operator.shapes[first + 1][-1]
    count = math.prod(batch)
    outputs = count * rows * columns * max(ITEM_BYTES[operator.types[first]], 2)
    moved = operator.size(first) + operator.size(first + 1) + outputs
    return Counted(Work(moved=moved, flops=2.0 * count * rows * columns * inner), _LIMITS[operator.types[first]])


def _attention(operator: Operator) -> Counted:
    query, axis, causal, products = _ATTENTION[operator.bare]
    positions = operator.shapes[query + 1][axis]
    is_square = positions == operator.shapes[query][axis]
    values = operator.values[causal] if len(operator.values) > causal else ""
    masked = 0.5 if is_square and values != "False" else 1.0  # a mask that is not recorded may halve the work
    flops = 4.0 * operator.numel(query) * positions * products * masked
    sizes = [operator.size(place) for place in range(query, query + 3)]
    moved = (sum(sizes) + sizes[0]) * (2.0 if products > 1 else 1.0)
    return Counted(Work(moved=moved, flops=flops), _LIMITS[operator.types[query]])


def _convolution(operator: Operator) -> Counted:
    if operator.bare == "convolution_backward":
        flops = 4.0 * operator.numel(0) * math.prod(operator.shapes[2][1:])
        moved = operator.size(0) + 2 * (operator.size(1) + operator.size(2))
        return Counted(Work(moved=moved, flops=flops), _LIMITS[operator.types[0]])
    padding, stride, dilation = ([int(number) for number in _NUMBERS.findall(operator.values[i])] for i in (2, 3, 4))
    batch, _, *sides = operator.shapes[0]
    outputs, _, *kernel = operator.shapes[1]
    sizes = [
        (side + 2 * pad - step * (width - 1) - 1) // move + 1
        for side, width, pad, move, step in zip(sides, kernel, padding, stride, dilation, strict=True)
    ]
    elements = float(batch * outputs * math.prod(sizes))
    moved = operator.size(0) + operator.size(1) + elements * ITEM_BYTES[operator.types[0]]
    flops = 2.0 * elements * math.prod(operator.shapes[1][1:])
    return Counted(Work(moved=moved, flops=flops), _LIMITS[operator.types[0]])


def _rows(operator: Operator) -> Counted:
    if operator.bare == "embedding_dense_backward":
        return Counted(Work(moved=operator.size(0) + operator.size(1)))
    indices = 1 if operator.bare == "embedding" else 2
    row = operator.shapes[0][-1] * ITEM_BYTES[operator.types[0]]
    return Counted(Work(moved=2.0 * operator.numel(indices) * row + operator.size(indices)))
