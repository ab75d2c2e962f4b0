"""Match layers of a quantized model whose weights can be tuned with those of the float model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.formats import Format
from transforms import features
from transforms.graph import dot_products, walk
from transforms.graph.constants import Constants
from transforms.graph.number_shapes import NumberShapes
from transforms.layers.linear_layer import LinearLayer, UnsupportedLayer, layer_of
from transforms.layers.matched_layer import (
    Bias,
    MatchedLayer,
    SkippedLayer,
    added_constant,
    bias_place,
)
from transforms.layers.scale_blocks import can_have_blocks
from transforms.layers.stored_constant import SHARED, StoredConstant, candidate_formats, weight_place

_OF_INTEGERS = frozenset(
    {"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"}
    | {"DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulNBits"}
)
"""Integer dot products of ONNX and of ONNX Runtime with operators of their own."""

_RENAMED = 2  # by quantizing an output of the model, by an Add of tuning
_LEAST_LIKENESS = 0.5
"""Least cosine between a float weight and its quantized form: rounding to 4 bits gives 0.95, tuning less."""


def match_layers(
    float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format] = ()
) -> tuple[list[MatchedLayer], list[SkippedLayer]]:
    """Return the layers that can be tuned in execution order, and the skipped ones with reasons.

    Layers that read the same stored weight are joined, see :func:`transforms.layers.match_layers.join_users`.

    ``float_graph`` is the float model just before quantization: prepared, equalized and balanced. A layer is
    found there by its name and operator, or by the name of its output, and must have a weight with the same
    shape, of which the stored weight is a rounding. ``formats`` are those of the quantized model: its block
    formats are tried on weights first.
    """
    finder = _Finder(float_graph, quantized_graph, candidate_formats(quantized_graph, formats))
    matched, left = [], []
    main = {id(node) for node in quantized_graph.nodes}
    for node in walk.nodes(quantized_graph):
        if node.op in _OF_INTEGERS:
            left.append(SkippedLayer(_name(node), node.op, "it is an integer operator"))
        feature = features.of(node)
        if feature is not None and features.reads_stored(node):
            left.append(SkippedLayer(_name(node), node.op, f"it is {feature.noun}"))
        if not dot_products.is_dot_product(node):
            continue
        try:
            if id(node) not in main:
                raise UnsupportedLayer("it is inside a body of If, Loop or Scan")
            matched.append(finder.match(node))
        except UnsupportedLayer as error:
            left.append(SkippedLayer(_name(node), node.op, str(error)))
    return join_users(matched, left)


def of_operators(
    layers: list[MatchedLayer], op_types: Sequence[str]
) -> tuple[list[MatchedLayer], list[SkippedLayer]]:
    """Return the layers of operator types, and the skipped ones with the reason; without types all layers.

    Raises ValueError for an operator type without a layer, and if every weight is shared with other types.
    """
    if not op_types:
        return layers, []
    present = {user.node.op for layer in layers for user in layer.users}
    for op in op_types:
        if layers and op not in present:
            tunable = ", ".join(sorted(present))
            raise ValueError(f"operator type '{op}': no layer of it can be tuned, only of {tunable}")
    asked = [layer for layer in layers if all(user.node.op in op_types for user in layer.users)]
    if layers and not asked:
        sharing = next(layer for layer in layers if any(user.node.op in op_types for user in layer.users))
        names = " and ".join(f"'{user.name}' ({user.node.op})" for user in sharing.users)
        raise ValueError(f"operator type '{op_types[0]}': no layer has its own weight, {names} share one")
    skipped = [
        SkippedLayer(user.name, user.node.op, _NOT_ASKED[user.node.op in op_types])
        for layer in layers
        if not any(layer is chosen for chosen in asked)
        for user in layer.users
    ]
    return asked, skipped


_NOT_ASKED = (
    "its operator is not selected",
    "it shares its weight with an operator that is not selected",
)


class _Finder:
    """Searches one float model for counterparts."""

    def __init__(self, float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format]) -> None:
        self._graph, self._formats = quantized_graph, formats
        self._constants = Constants(float_graph)
        products = [node for node in float_graph.nodes if dot_products.is_dot_product(node)]
        self._by_output = {node.outputs[0].name: node for node in products}
        self._by_name = {node.name: node for node in products if node.name}
        self._uneven = NumberShapes(float_graph).names

    def match(self, node: gs.Node) -> MatchedLayer:
        """Return a layer with its counterpart; UnsupportedLayer with the reason if there is none."""
        index, weight = weight_place(self._graph, node, self._formats)
        if weight.format is None:
            raise UnsupportedLayer("its weight is float32")
        source = node.inputs[1 - index]
        if isinstance(source, gs.Constant):
            raise UnsupportedLayer("its input is a constant, too")
        layer = layer_of(node, weight.shape, index)
        if weight.block:
            if not can_have_blocks(layer, weight.axis):
                raise UnsupportedLayer(f"its weight has blocks along axis {weight.axis}, not along the sum")
        elif not layer.channels(weight.axis):
            raise UnsupportedLayer(
                f"its weight has scales along axis {weight.axis}, which is not that of outputs"
            )
        counterpart = self._counterpart(node)
        if counterpart.outputs[0].name in self._uneven:
            raise UnsupportedLayer("numbers decide how many rows it has: the models may have different ones")
        numbers = self._weight(counterpart, index, weight)
        bias = bias_place(self._graph, node, layer)
        if bias is not None and bias.is_extra and weight.format.is_float:
            bias = None  # the sum would be the only value with another type
        target, float_bias = self._target(counterpart, bias, layer)
        return MatchedLayer(
            name=_name(node),
            node=node,
            layer=layer,
            weight=weight,
            bias=bias,
            source=source,
            target=target.name,
            float_weight=layer.pack(numbers),
            float_bias=float_bias,
        )

    def _counterpart(self, node: gs.Node) -> gs.Node:
        output = node.outputs[0].name
        candidates = [self._by_name.get(node.name), self._by_output.get(output)]
        for _ in range(_RENAMED):
            output = output.removesuffix("_raw")
            candidates.append(self._by_output.get(output))
        for candidate in candidates:
            if candidate is not None and candidate.op == node.op:
                return candidate
        raise UnsupportedLayer("the float model has no layer of its name")

    def _weight(self, counterpart: gs.Node, index: int, stored: StoredConstant) -> NDArray[np.float32]:
        values = self._constants.values(counterpart.inputs[index])
        if values is None or values.dtype != np.float32:
            raise UnsupportedLayer("the weight of the float layer is not a float32 constant")
        if tuple(values.shape) != stored.shape:
            raise UnsupportedLayer(
                f"its weight is {list(stored.shape)}, that of the float layer {list(values.shape)}"
            )
        if not np.isfinite(values).all():
            raise UnsupportedLayer("the weight of the float layer holds numbers that are not finite")
        if _likeness(stored.values(), values) < _LEAST_LIKENESS:
            raise UnsupportedLayer("its weight is not a rounding of the float layer's")
        return values

    def _target(
        self, counterpart: gs.Node, bias: Bias | None, layer: LinearLayer
    ) -> tuple[gs.Tensor, Float64Array]:
        """Return the float tensor that is the layer's target, and the float bias that it includes."""
        groups, outputs = layer.size[:2]
        none = np.zeros((groups, outputs))
        product = counterpart.outputs[0]
        if bias is None or bias.is_extra:
            return product, none
        if counterpart.op != "MatMul":
            added = dot_products.bias(counterpart)
            return product, none if added is None else self._numbers(added, bias.gain, layer)
        addition = added_constant(product, self._constants)
        if addition is None:  # an earlier tuning added it
            return product, none
        node, index = addition
        return node.outputs[0], self._numbers(node.inputs[index], 1.0, layer)

    def _numbers(self, tensor: gs.Tensor, gain: float, layer: LinearLayer) -> Float64Array:
        values = self._constants.values(tensor)
        groups, outputs = layer.size[:2]
        if values is None or values.size not in (1, groups * outputs):
            raise UnsupportedLayer("the bias of the float layer is not one number for each output")
        wide = np.broadcast_to(values.reshape(-1).astype(np.float64) * gain, groups * outputs)
        return wide.reshape(groups, outputs)


def _likeness(stored: NDArray[np.float32], values: NDArray[np.float32]) -> float:
    """Return the cosine between two arrays, 1 if both are zero."""
    a, b = stored.astype(np.float64).reshape(-1), values.astype(np.float64).reshape(-1)
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms else float(np.array_equal(a, b))


def _name(node: gs.Node) -> str:
    return str(node.name or node.outputs[0].name)


def join_users(
    layers: list[MatchedLayer], left: list[SkippedLayer]
) -> tuple[list[MatchedLayer], list[SkippedLayer]]:
    """Return one layer for each weight, in the place of its last user, and the skipped layers.

    A weight stays unchanged, and its layers are skipped, if it has another consumer: another operator, a
    layer in ``left``, or one that uses it differently (transposed, for example).
    """
    joined, skipped = list[MatchedLayer](), list(left)
    for key in reversed(list(dict.fromkeys(id(layer.weight.source) for layer in reversed(layers)))):
        users = [layer for layer in layers if id(layer.weight.source) == key]
        first, *rest = users
        if not _has_all(users) or not all(_is_alike(first, user) for user in rest):
            skipped += (SkippedLayer(user.name, user.node.op, f"its weight: {SHARED}") for user in users)
            continue
        for user in rest:
            user.weight = first.weight
        first.sharing_layers = rest
        joined.append(first)
    return joined, skipped


def _has_all(layers: list[MatchedLayer]) -> bool:
    """Return whether the weight has no consumers besides these layers."""
    of_layers = {(id(layer.node), layer.layer.index) for layer in layers}
    return {(id(node), index) for node, index in walk.uses(layers[0].weight.tensors[-1])} == of_layers


def _is_alike(layer: MatchedLayer, other: MatchedLayer) -> bool:
    """Return whether two layers multiply their rows by the same matrices."""
    if layer.layer.size != other.layer.size:
        return False
    numbers = np.arange(np.prod(layer.weight.shape)).reshape(layer.weight.shape)
    return np.array_equal(layer.layer.pack(numbers), other.layer.pack(numbers))
