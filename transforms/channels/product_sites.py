"""Tensors that layers multiply with constant matrices, and what makes the channels of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from transforms.channels.per_channel import PerChannel, inputs_of
from transforms.channels.sites import Site, SiteFinder
from transforms.graph import dtypes, walk
from transforms.graph.rewire import onnx_op


def layers_on(tensor: gs.Tensor) -> list[gs.Node]:
    """Return the nodes that multiply the rows of a tensor with constant matrices; none for constants."""
    if isinstance(tensor, gs.Constant) or not dtypes.is_type(tensor, dtypes.FLOAT):
        return []
    return [node for node, index in walk.uses(tensor) if index == 0 and _multiplies_rows(node)]


def _multiplies_rows(node: gs.Node) -> bool:
    """Return whether a MatMul, or a Gemm that does not transpose rows, has a constant float32 matrix."""
    if onnx_op(node) not in ("MatMul", "Gemm") or node.attrs.get("transA", 0):
        return False
    weight = node.inputs[1]
    is_stored = isinstance(weight, gs.Constant) and dtypes.is_type(weight, dtypes.FLOAT)
    return is_stored and len(weight.shape) == 2 and 0 not in weight.shape


def product_site(finder: SiteFinder, tensor: gs.Tensor, layers: Sequence[gs.Node]) -> Site:
    """Return the channels of a tensor that layers sum over, as a site.

    A LayerNormalization over the last axis, or a Mul with a constant for each channel, makes the tensor, and
    nothing but the layers reads it; or one layer makes it and one reads it, with what commutes with factors
    in between. Otherwise nothing takes them in.
    """
    read = [inputs_of(node) for node in layers]
    made = _factors_of(tensor) if len(walk.uses(tensor)) == len(layers) and finder.may_change(tensor) else []
    site = finder.before(layers[0]) if len(layers) == 1 and not made else None
    if site is not None:
        return replace(site, tensors=[tensor])
    return Site(read[0].channels, [tensor], made, read, is_shared=True)


def _factors_of(tensor: gs.Tensor) -> list[PerChannel]:
    """Return the initializers with a number for each channel of the last axis by which a node makes it."""
    node = tensor.inputs[0]
    if onnx_op(node) == "LayerNormalization" and node.outputs[0] is tensor:
        axes = node.attrs.get("axis", -1)
        is_last = axes == -1 or (tensor.shape is not None and axes == len(tensor.shape) - 1)
        held = [PerChannel(node, i, -1) for i in (1, 2) if i < len(node.inputs)]
        held = [one for one in held if not one.constant.is_empty()]
        return held if is_last and all(_is_vector(one.constant) for one in held) else []
    if onnx_op(node) == "Mul" and tensor.shape:
        vectors = [i for i in (0, 1) if _is_vector(node.inputs[i])]
        vectors = [i for i in vectors if node.inputs[i].shape[-1] == tensor.shape[-1]]
        return [PerChannel(node, i, -1) for i in vectors[:1]]
    return []


def _is_vector(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and dtypes.is_type(tensor, dtypes.FLOAT) and len(tensor.shape) == 1
