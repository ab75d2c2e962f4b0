"""A layer of a quantized model with its float counterpart, and the place of its bias."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.graph import dot_products
from transforms.graph.constants import Constants
from transforms.graph.masks import masks_in
from transforms.layers.linear_layer import LinearLayer, UnsupportedLayer
from transforms.layers.stored_constant import ROUNDING, StoredConstant, trace_constant

_ROUNDING = ROUNDING | {"Clip"}


@dataclass
class Bias:
    """The bias of a layer: ``stored`` is None if there is none yet, but there can be.

    ``node`` adds it as its input ``index``; ``gain`` is its factor. ``is_extra``: it needs another node, an
    Add after the MatMul that ``node`` is until then.
    """

    node: gs.Node
    index: int
    stored: StoredConstant | None
    gain: float = 1.0
    is_extra: bool = False


@dataclass
class MatchedLayer:
    """A layer of the quantized model with its float counterpart.

    ``source`` is the tensor that the quantized layer reads, ``target`` the name of its float output,
    including the bias if there is one. ``float_weight`` is [G, N, S, C], ``float_bias`` [G, N].
    ``sharing_layers`` are the other layers that read the same weight.
    """

    name: str
    node: gs.Node
    layer: LinearLayer
    weight: StoredConstant
    bias: Bias | None
    source: gs.Tensor
    target: str
    float_weight: NDArray[np.float32]
    float_bias: Float64Array
    sharing_layers: list[MatchedLayer] = field(default_factory=list)

    @property
    def users(self) -> list[MatchedLayer]:
        """The layers that read the weight, in execution order."""
        return [self, *self.sharing_layers]


@dataclass(frozen=True)
class SkippedLayer:
    """A dot product that is not tuned, and why."""

    name: str
    op: str
    reason: str


def bias_place(graph: gs.Graph, node: gs.Node, layer: LinearLayer) -> Bias | None:
    """Return the present or possible place of a layer's bias, or None if it cannot have one.

    A MatMul can get an Add unless one already adds a constant, provided that the output's rank is known: an
    Add of masks is not a bias.
    """
    if node.op != "MatMul":
        if layer.bias_gain == 0:
            return None
        if dot_products.bias(node) is None:
            return Bias(node, 2, None, layer.bias_gain)
        try:
            stored = trace_constant(graph, node, 2, (), 0)
        except UnsupportedLayer as error:
            raise UnsupportedLayer(f"its bias: {error}") from error
        if not _is_per_output(stored.shape, layer, 2):
            raise UnsupportedLayer(f"its bias {list(stored.shape)} is not one number for each output")
        return Bias(node, 2, stored, layer.bias_gain)
    extra = None if node.outputs[0].shape is None else Bias(node, 1, None, is_extra=True)
    addition = added_constant(node.outputs[0], Constants(graph), through=True)
    if addition is None:
        return extra
    add, index = addition
    try:
        stored = trace_constant(graph, add, index, (), 0)
    except UnsupportedLayer:
        return None
    if masks_in(stored.values()).any():
        return extra
    rank = max(2, len(layer.shape)) if node.outputs[0].shape is None else len(node.outputs[0].shape)
    return Bias(add, index, stored) if _is_per_output(stored.shape, layer, rank) else None


def _is_per_output(shape: tuple[int, ...], layer: LinearLayer, rank: int) -> bool:
    """Return whether an array with a shape broadcasts to one number for each output."""
    groups, outputs = layer.size[:2]
    if int(np.prod(shape)) == 1 and groups * outputs > 1:
        return False
    if layer.op in ("Conv", "ConvTranspose"):
        return shape == (groups * outputs,)
    wanted = np.empty(groups * outputs).reshape(layer.channel_shape(rank)).shape
    pairs = zip_longest(reversed(shape), reversed(wanted), fillvalue=1)
    return all(size == other for size, other in pairs)


def added_constant(
    tensor: gs.Tensor, constants: Constants, *, through: bool = False
) -> tuple[gs.Node, int] | None:
    """Return the Add that is the only reader of a tensor, and its constant input, or None.

    ``through``: nodes that round the tensor may precede it, and the constant may be rounded, too.
    """
    while len(tensor.outputs) == 1:
        (node,) = tensor.outputs
        if node.op == "Add":
            index = 1 if node.inputs[0] is tensor else 0
            other = node.inputs[index]
            while through and other.inputs and other.inputs[0].op in _ROUNDING:
                other = other.inputs[0].inputs[0]
            return (node, index) if constants.values(other) is not None else None
        if not through or node.op not in _ROUNDING or node.inputs[0] is not tensor:
            return None
        tensor = node.outputs[0]
    return None
