"""A quantized model back in float: nodes that quantize and dequantize are removed."""

from __future__ import annotations

import logging

import numpy as np
import onnx_graphsurgeon as gs

import ops
from ops.array_types import AnyArray, Float32Array
from transforms import features
from transforms.features.hooks import WeightForm
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.grids import grid_of
from transforms.graph.lazy_values import constant, derived
from transforms.graph.qdq import BLOCKS, DEQUANTIZE, QUANTIZE
from transforms.graph.rewire import RUNTIME_DOMAIN, bypass, forget_domains, position, remove_unused
from transforms.graph.selection import Choice, Exclusion, chosen_nodes, label_of, resolve

log = logging.getLogger(__name__)

_CLIP_WITH_INPUTS = 11  # opset


def remove_qdq(
    graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None, clip: bool = True
) -> int:
    """Remove quantization from a model; return how many tensors are read in float.

    Covers, in the bodies of If, Loop and Scan too:

    * a pair that quantizes and dequantizes: its consumers read the float tensor before it. With ``clip`` a
      Clip to the range of the integers is inserted, since a Relu may be part of a quantization; not for pairs
      with a scale per channel;
    * stored integers, of recurrent layers too: the float32 numbers that they represent are stored, which
      changes no result;
    * rounding to a block format, and pairs of bfloat16 or float16 operators.

    ``nodes`` are layers: their inputs and outputs become float, everything else stays quantized. Pairs next
    to ``exclude`` stay. Does nothing to a pair with two grids (it rescales), to integers that are inputs of
    the model or outputs of other operators (ConvInteger, DynamicQuantizeLinear), to operators that compute on
    integers themselves (QLinearConv), and to Casts, which round without a grid.
    """
    remover = _Remover(graph, nodes, exclude, clip=clip)
    for inner in list(walk.graphs(graph)):
        for node in list(inner.nodes):
            remover.remove(inner, node)
    remover.clear()
    return remover.count


class _Remover:
    def __init__(self, graph: gs.Graph, nodes: Choice | None, exclude: Exclusion, *, clip: bool) -> None:
        self._graph, self._clip, self.count = graph, clip, 0
        self._excluded = resolve(exclude, graph)
        self._chosen = None if nodes is None else chosen_nodes(nodes, graph, "nodes")
        self._constants, self._names, self._outputs = Constants(graph), walk.Names(graph), walk.outputs(graph)
        self._owners = {id(node): inner for inner in walk.graphs(graph) for node in inner.nodes}
        self._sources: dict[int, gs.Tensor] = {}
        self._idle: list[gs.Node] = []

    def remove(self, owner: gs.Graph, node: gs.Node) -> None:
        """Let the chosen consumers of a node read float numbers, if the node is part of a quantization."""
        form = features.weights_of(node)
        if form is not None and self._takes(node):
            self._widen_weights(node, form)
        if node.op not in (*DEQUANTIZE, *BLOCKS):
            return
        result, maker = node.outputs[0], walk.producer(node.inputs[0])
        before = walk.producer(maker.inputs[0]) if node.op in DEQUANTIZE and maker is not None else maker
        uses = [(user, index) for user, index in walk.uses(result) if self._takes(before, user)]
        is_output = id(result) in self._outputs and self._takes(before)
        source = self._source(node, maker) if uses or is_output else None
        if source is None:
            return
        for user, index in uses:
            user.inputs[index] = source
        self._idle += [node] if maker is None else [node, maker]
        self.count += 1
        if is_output:  # it keeps its name, and its place in the list of outputs
            node.op, node.domain, node.attrs, node.inputs = "Identity", None, {}, [source]
            bypass(owner, [node], self._outputs)

    def _widen_weights(self, node: gs.Node, form: WeightForm) -> None:
        """Let a layer other than a dot product read its weights in float32."""
        for index in form.inputs:
            weight = form.read(node.inputs[index])
            if weight is not None:
                name = self._names.derive(weight.source.name, "float")
                node.inputs[index] = constant(name, weight.values())
                self._idle += reversed(weight.nodes)
                self.count += 1

    def clear(self) -> None:
        """Remove the nodes that are left without consumers, in bodies before the outer graphs."""
        for inner in reversed(list(walk.graphs(self._graph))):
            remove_unused(inner, self._idle)
        if self.count:
            forget_domains(self._graph, {ops.DOMAIN, ops.AMD_DOMAIN, RUNTIME_DOMAIN})

    def _takes(self, *layers: gs.Node | None) -> bool:
        """Return whether a layer next to a quantization is chosen, and none excluded."""
        if any(layer in self._excluded for layer in layers):
            return False
        return self._chosen is None or any(layer in self._chosen for layer in layers)

    def _source(self, node: gs.Node, maker: gs.Node | None) -> gs.Tensor | None:
        """Return the float tensor that replaces a node's result, or None if there is none."""
        if node.op in BLOCKS:
            return node.inputs[0]
        if self._constants.shape(node.inputs[0]) is not None:
            return self._stored(node)
        if maker is None or maker.op not in QUANTIZE or not self._is_pair(maker, node):
            log.debug("'%s' stays: its integers are not those of a float tensor", label_of(node))
            return None
        if not self._clip:
            return maker.inputs[0]
        if id(maker) not in self._sources:
            owner = self._owners[id(maker)]
            self._sources[id(maker)] = clipped(owner, maker, self._constants, self._names)
        return self._sources[id(maker)]

    def _stored(self, node: gs.Node) -> gs.Constant | None:
        """Return the float32 values of stored integers, under the same name if no other node needs it."""
        stored, grid = node.inputs[0], grid_of(node, self._constants)
        is_neutral = all(
            self._constants.scalar(tensor) == end
            for tensor, end in zip(node.inputs[1:], (1, 0), strict=False)
        )
        if grid is None and not is_neutral:
            log.debug("'%s' stays: its scale is computed, or its numbers are no integers", label_of(node))
            return None
        values = self._constants.source(stored)
        widen = grid.dequantize if grid is not None else _widened
        is_alone = isinstance(stored, gs.Constant) and walk.is_read_once(stored)
        name = stored.name if is_alone else self._names.derive(stored.name, "float")
        return constant(str(name), derived(values, widen, np.float32))

    def _is_pair(self, quantize: gs.Node, dequantize: gs.Node) -> bool:
        grids = [grid_of(node, self._constants) for node in (quantize, dequantize)]
        if None not in grids:
            return grids[0] == grids[1]
        grid_tensors = [list(map(id, node.inputs[1:])) for node in (quantize, dequantize)]
        return grid_tensors[0] == grid_tensors[1]


def _widened(values: AnyArray) -> Float32Array:
    return values.astype(np.float32)


def clipped(owner: gs.Graph, quantize: gs.Node, constants: Constants, names: walk.Names) -> gs.Tensor:
    """Return the input of a QuantizeLinear, clipped to the range of its grid if that has one scale.

    A constant is not clipped, as no Relu is part of its quantization.
    """
    source, grid = quantize.inputs[0], grid_of(quantize, constants)
    bounds = None if grid is None or constants.shape(source) is not None else grid.bounds
    if bounds is None:
        return source
    result = gs.Variable(names.derive(source.name, "clipped"), source.dtype, source.shape)
    name, inputs, attrs = names.derive(result.name, "Clip"), [source], {}
    if owner.opset < _CLIP_WITH_INPUTS:
        attrs = {"min": float(bounds[0]), "max": float(bounds[1])}
    else:
        inputs += [gs.Constant(names.derive(result.name, "bound"), bound) for bound in bounds]
    owner.nodes.insert(position(owner, quantize), gs.Node("Clip", name, attrs, inputs, [result]))
    return result
