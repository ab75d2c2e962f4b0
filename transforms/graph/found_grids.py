"""Recognize weights of a model that lie on a grid, from their values alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.grids.recognise import LEAST_BLOCK, FoundGrid, recognise
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.dot_products import is_dot_product, is_operand, sum_axis
from transforms.graph.embeddings import is_lookup, is_table
from transforms.graph.rewire import RUNTIME_DOMAIN, onnx_op
from transforms.graph.some_names import counted, some_names

_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16)
_PASSES = ("Transpose", "Cast", "Identity")  # between a weight and its product
_MATRIX_RANK = 2
EXPERTS, _STACKS = "MoE", (2, 4, 6)  # with the inputs that are stacks of matrices
_LEAST = 16 * LEAST_BLOCK  # elements of a weight that is examined

_SOURCES = {
    (4, False, 32): "Q4_0",
    (4, True, 32): "Q4_1",
    (5, False, 32): "Q5_0",
    (5, True, 32): "Q5_1",
    (8, False, 32): "Q8_0",
}
"""Names of GGUF by bits, presence of a minimum, and block; with float16 steps."""

_OF_BLOCKS = {
    (2, True, 16): "Q2_K",
    (3, False, 16): "Q3_K",
    (4, True, 32): "Q4_K",
    (5, True, 32): "Q5_K",
    (6, False, 16): "Q6_K",
}
"""The same, for steps that are products."""


@dataclass(frozen=True)
class FoundWeight:
    """A weight, its number of elements, and its grid: None without one, or that of a part of its blocks."""

    name: str
    size: int
    grid: FoundGrid | None

    @property
    def is_whole(self) -> bool:
        """Whether all blocks of the weight are on the grid."""
        return self.grid is not None and self.grid.share == 1

    @property
    def words(self) -> str:
        """The grid in words."""
        if self.grid is None:
            return "no grid"
        share = "" if self.is_whole else f", {self.grid.share:.1%} of its blocks"
        return f"{grid_words(self.grid)}{share}"


def grid_words(grid: FoundGrid) -> str:
    """Describe a grid: ``4 bits with a minimum, blocks of 32 (as Q4_1)``."""
    kind = grid.kind
    element = kind.element.removesuffix("fn") or f"{grid.bits} bit{'s' * (grid.bits > 1)}"
    least = " with a minimum" if kind.has_minimum else ""
    after = f" rounded to {kind.rounding}" if kind.rounding != "float32" else ""
    where = f"blocks of {grid.block}" if grid.block else "a scale per channel"
    if grid.order is not None:
        where += " that are not adjacent (as GPTQ with act-order)"
    with np.errstate(over="ignore"):
        is_short = np.array_equal(grid.step.astype(np.float16).astype(np.float32), grid.step)
    names = _SOURCES if is_short else _OF_BLOCKS
    source = None if kind.element else names.get((grid.bits, kind.has_minimum, grid.block))
    return f"{element}{least}{after}, {where}{f' (as {source})' if source and not after else ''}"


def found_weights(
    graph: gs.Graph, wanted: Callable[[gs.Constant], bool] = lambda _: True
) -> Iterator[FoundWeight]:
    """Yield each weight of products, and each embedding, with its grid; one weight at a time is in memory."""
    for tensor in weights(graph):
        if wanted(tensor):
            yield found_weight(tensor)


def found_weight(tensor: gs.Constant) -> FoundWeight:
    """Return a weight with its grid."""
    return FoundWeight(tensor.name, int(np.prod(tensor.shape)), recognise(load(tensor), _summed(tensor)))


def _summed(tensor: gs.Constant) -> int | None:
    """Return the axis over which the products of a matrix sum, or that of a table's rows, or None."""
    if len(tensor.shape) != _MATRIX_RANK:
        return None
    if is_table(tensor):
        return 1
    uses = [use for use in walk.uses(tensor) if is_dot_product(use[0]) and is_operand(*use)]
    return next((sum_axis(*use, _MATRIX_RANK) for use in uses), None)


def weights(graph: gs.Graph) -> list[gs.Constant]:
    """Return the float constants by which products multiply, that experts use, or that lookups read.

    Small ones are left out.
    """
    return [tensor for tensor in walk.constants(graph) if _is_weight(tensor)]


def _is_weight(tensor: gs.Constant) -> bool:
    is_large = len(tensor.shape) > 1 and np.prod(tensor.shape) >= _LEAST
    if not is_large or dtypes.element_type(tensor) not in _FLOATS:
        return False
    lookups = [node for node in tensor.outputs if is_lookup(node, tensor)]
    return any(not _is_spread(node.outputs[0]) for node in lookups) or _is_factor(tensor)


def _is_spread(rows: gs.Tensor) -> bool:
    """Return whether looked-up rows are block parameters: a Gather repeats them for each column."""
    return any(
        _is_spread(node.outputs[0])
        if onnx_op(node) == "Cast"
        else onnx_op(node) == "Gather" and node.inputs[0] is rows and int(node.attrs.get("axis", 0)) == -1
        for node in rows.outputs
    )


def _is_factor(tensor: gs.Tensor) -> bool:
    for node, index in walk.uses(tensor):
        if (is_dot_product(node) and is_operand(node, index)) or is_stack(node, index):
            return True
        if onnx_op(node) in _PASSES and _is_factor(node.outputs[0]):
            return True
    return False


def is_stack(node: gs.Node, index: int) -> bool:
    """Return whether an input of a node is a stack of experts' matrices of ONNX Runtime's MoE."""
    return node.domain == RUNTIME_DOMAIN and node.op == EXPERTS and index in _STACKS


def share_lines(found: Sequence[FoundWeight]) -> Iterator[str]:
    """Yield lines on how many weights are on which grid, and which are on none or in part."""
    kinds = Counter(grid_words(one.grid) for one in found if one.grid is not None and one.is_whole)
    for words, count in kinds.most_common():
        yield f"On a grid already: {counted(count, 'weight')} in {words}"
    others = [one for one in found if not one.is_whole]
    if others and kinds:
        share = sum(one.size for one in others) / sum(one.size for one in found)
        names = some_names([one.name for one in others])
        yield f"Not on a grid: {counted(len(others), 'weight')}, {share:.1%} of the numbers: {names}"
