"""Proven facts about the shapes of a graph's tensors: sizes of axes, and reshapes that move nothing.

They rely on the shapes of tensors (those inferred by ``graph_proto.import_model``). A dimension is a number,
a name (equal names are equal sizes), or unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from transforms.graph.constants import Constants

Dimension = int | str | None
Shape = tuple[Dimension, ...]

_DEPTH = 16
_KEEP_SHAPE = frozenset(
    {"Identity", "Cast", "Relu", "Sigmoid", "Tanh", "Erf", "Gelu", "Softmax", "LayerNormalization"}
    | {"Neg", "Sqrt"}
)
_BROADCAST = frozenset(["Add", "Sub", "Mul", "Div"])


def shape_of(tensor: gs.Tensor) -> Shape | None:
    """Return the shape of a tensor, or None if its rank is unknown."""
    if tensor.shape is None:
        return None
    return tuple(size if _is_known(size) else None for size in tensor.shape)


def size(tensor: gs.Tensor, axis: int) -> int | None:
    """Return the fixed size of an axis, counted from the end, or None if it is unknown or not fixed.

    The size of the last axis is also deduced from weights and biases if shape inference fails.
    """
    shape = shape_of(tensor)
    declared = shape[axis] if shape is not None and len(shape) >= -axis else None
    if isinstance(declared, int):
        return declared
    return _last_size(tensor, _DEPTH) if axis == -1 else None


def reduced_axes(node: gs.Node, rank: int | None, constants: Constants) -> tuple[int, ...] | None:
    """Return the axes of a reduction, counted from the end and ascending, or None if they are unknown."""
    has_axes = "axes" in node.attrs or (len(node.inputs) > 1 and not node.inputs[1].is_empty())
    if has_axes:
        return listed_axes(node, rank, constants)
    if rank is None or node.attrs.get("noop_with_empty_axes"):
        return None
    return tuple(range(-rank, 0))


def listed_axes(node: gs.Node, rank: int | None, constants: Constants) -> tuple[int, ...] | None:
    """Return the axes given by an attribute or second input, counted from the end; None if not constant.

    ``rank`` is that of the tensor with the axes, which is the result for Unsqueeze.
    """
    axes: Iterable[int] | None = node.attrs.get("axes")
    if axes is None and len(node.inputs) > 1:
        axes = constants.integers(node.inputs[1])
    if not axes or (rank is None and any(axis >= 0 for axis in axes)):
        return None
    return tuple(sorted({axis - (rank or 0) if axis >= 0 else axis for axis in axes}))


def _is_known(dimension: object) -> bool:
    return (isinstance(dimension, int) and dimension >= 0) or (isinstance(dimension, str) and dimension != "")


def _last_size(tensor: gs.Tensor, depth: int) -> int | None:
    shape = shape_of(tensor)
    if shape is not None and (not shape or isinstance(shape[-1], int)):
        return shape[-1] if shape else 1  # type: ignore[return-value]
    if len(tensor.inputs) != 1 or depth == 0:
        return None
    producer = tensor.inputs[0]
    if producer.op in _KEEP_SHAPE:
        return _last_size(producer.inputs[0], depth - 1)
    if producer.op == "MatMul" and len(shape_of(producer.inputs[1]) or ()) > 1:
        return _last_size(producer.inputs[1], depth - 1)
    if producer.op in _BROADCAST:
        return _broadcast([_last_size(tensor, depth - 1) for tensor in producer.inputs])
    return None


def _broadcast(sizes: list[int | None]) -> int | None:
    return next((size for size in sizes if size is not None and size != 1), 1 if set(sizes) == {1} else None)


def restores(
    node: gs.Node, reduced: bool, axes: tuple[int, ...], shape: Shape | None, constants: Constants
) -> bool:
    """Return whether a node restores the axes of a statistic of x, to their sizes in x or to 1.

    The node is an Unsqueeze, Reshape or Expand. The statistic lacks the axes if ``reduced``; x has ``shape``.
    """
    if node.op == "Unsqueeze":
        return reduced and listed_axes(node, None if shape is None else len(shape), constants) == axes
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    if before is None or after is None:
        return False
    if node.op == "Reshape":
        return _keeps_order(before, after, axes, reduced=reduced)
    return not reduced and shape is not None and _broadcasts_along(axes, before, after, shape)


def _keeps_order(before: Shape, after: Shape, axes: tuple[int, ...], *, reduced: bool) -> bool:
    """Return whether a Reshape moves nothing: if all sizes but one are equal, so is that one."""
    if len(after) < max(map(abs, axes), default=0):
        return False
    restored = {axis + len(after) for axis in axes} if reduced else set()
    rest = [dimension for index, dimension in enumerate(after) if index not in restored]
    if len(rest) != len(before) or any(after[index] != 1 for index in restored):
        return False
    different = [pair for pair in zip(before, rest, strict=True) if not are_same(*pair)]
    return len(different) <= 1 and not any(isinstance(a, int) and isinstance(b, int) for a, b in different)


def _broadcasts_along(axes: tuple[int, ...], before: Shape, after: Shape, shape: Shape) -> bool:
    """Return whether an Expand only broadcasts along the reduced axes, up to the sizes in ``shape``."""
    return len(before) == len(after) == len(shape) and all(
        are_same(a, b)
        or (isinstance(a, int) and a > 1)
        or (index - len(shape) in axes and are_same(b, shape[index]))
        for index, (a, b) in enumerate(zip(before, after, strict=True))
    )


def are_same(a: Dimension, b: Dimension) -> bool:
    """Return whether two dimensions are known to be equal."""
    return a is not None and a == b
