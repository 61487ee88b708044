"""Draw the allocations of training steps from a seed: sizes, order and lifetimes, without a device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LAYERS = 24
_PASSING = 3  # temporary arrays of a layer, all freed before the next layer
_GRADIENTS = (0.5, 0.5, 2.0, 2.0)  # sizes of a layer's gradients in units of width²: projections, MLP
# Sizes of the activations that a layer keeps, in units of tokens × width: inputs, MLP, statistics.
_WIDTHS = (1.0, 1.0, 1.0, 4.0, 4.0, 0.125)
_TOKENS = (256, 2048)  # tokens per step: sequences differ in length, so sizes do not repeat
_LEAST_BYTES = 512


@dataclass(frozen=True, slots=True)
class MemoryOperation:
    """One operation of a trace: allocate block `block` of `nbytes`, or free it if `nbytes` is 0."""

    block: int
    nbytes: int


class TraceWriter:
    """Writes the operations of training steps into `operations`, and numbers the blocks.

    `width_bytes` is the bytes of one vector of activations."""

    def __init__(self, rng: np.random.Generator, width_bytes: int) -> None:
        self._rng, self._width_bytes = rng, width_bytes
        self.operations: list[MemoryOperation] = []
        self._blocks = 0

    @property
    def blocks_taken(self) -> int:
        """The number of blocks taken so far."""
        return self._blocks

    def take(self, nbytes: float) -> int:
        """Take a block and return its number."""
        block, self._blocks = self._blocks, self._blocks + 1
        self.operations.append(MemoryOperation(block, max(int(nbytes), _LEAST_BYTES)))
        return block

    def give(self, *blocks: int) -> None:
        """Give blocks back."""
        self.operations += [MemoryOperation(block, 0) for block in blocks]

    def step(self) -> None:
        """Append a training step: the activations of 24 layers, the gradients in reverse, and the optimiser's arrays.

        The number of tokens, and so the sizes, is drawn at random."""
        tokens = int(self._rng.integers(*_TOKENS))
        saved: list[list[int]] = []
        for _ in range(LAYERS):
            passing = [self.take(tokens * self._width_bytes * self._rng.uniform(0.5, 2.0)) for _ in range(_PASSING)]
            saved.append([self.take(tokens * self._width_bytes * width) for width in _WIDTHS])
            self.give(*passing)
        gradients = []
        while saved:
            passing = [self.take(tokens * self._width_bytes * 4.0) for _ in range(_PASSING)]
            gradients += [self.take(self._width_bytes * self._width_bytes * share) for share in _GRADIENTS]
            self.give(*passing, *saved.pop())
        for gradient in gradients:
            scratch = self.take(_LEAST_BYTES * float(self._rng.integers(1, 64)))
            self.give(scratch, gradient)


def training_trace(seed: int, allocations: int, peak_bytes: int) -> tuple[MemoryOperation, ...]:
    """Return the operations of training steps, drawn from `seed`, with exactly `allocations` allocations.

    All sizes are scaled so that at most `peak_bytes` are live at one time, up to the rounding of sizes to 512 bytes."""
    writer = TraceWriter(np.random.default_rng(seed), width_bytes=4096)
    while writer.blocks_taken < allocations:
        writer.step()
    operations = list(_first(writer.operations, allocations))
    scale = peak_bytes / most_live_bytes(operations)
    scaled = [
        MemoryOperation(operation.block, _rounded(operation.nbytes * scale) if operation.nbytes else 0)
        for operation in operations
    ]
    blocks_taken = {operation.block for operation in scaled if operation.nbytes}
    live = blocks_taken - {operation.block for operation in scaled if not operation.nbytes}
    return (*scaled, *(MemoryOperation(block, 0) for block in sorted(live)))


def _rounded(nbytes: float) -> int:
    return max(int(nbytes) // _LEAST_BYTES, 1) * _LEAST_BYTES


def _first(operations: Sequence[MemoryOperation], allocations: int) -> Iterator[MemoryOperation]:
    """Yield the operations of `operations` before the one that would allocate the block number `allocations` + 1."""
    blocks_taken = 0
    for operation in operations:
        blocks_taken += operation.nbytes > 0
        if blocks_taken > allocations:
            return
        yield operation


def most_live_bytes(operations: Sequence[MemoryOperation]) -> int:
    """Return the maximum of the bytes that are live at one time."""
    return live_bytes_at(operations, peak_index(operations))


def peak_index(operations: Sequence[MemoryOperation]) -> int:
    """Return the index of the first operation after which the most bytes are live; 0 without operations."""
    sizes: dict[int, int] = {}
    live = most = index = 0
    for place, operation in enumerate(operations):
        if operation.nbytes:
            sizes[operation.block] = operation.nbytes
            live += operation.nbytes
        else:
            live -= sizes.pop(operation.block)
        if live > most:
            most, index = live, place
    return index


def live_bytes_at(operations: Sequence[MemoryOperation], index: int) -> int:
    """Return the bytes that are live after the operation at index `index`: allocated and not yet freed."""
    sizes: dict[int, int] = {}
    for operation in operations[: index + 1]:
        if operation.nbytes:
            sizes[operation.block] = operation.nbytes
        else:
            del sizes[operation.block]
    return sum(sizes.values())
