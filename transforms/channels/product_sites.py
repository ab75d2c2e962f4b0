"""Tensors that layers multiply with constant matrices, and what makes the channels of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from transforms.channels.per_channel import PerChannel, has_weight, inputs_of
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
    is_product = node.op in ("MatMul", "Gemm") and not node.attrs.get("transA", 0)
    return is_product and has_weight(node) and len(node.inputs[1].shape) == 2


def product_site(finder: SiteFinder, tensor: gs.Tensor, layers: Sequence[gs.Node]) -> Site:
    """Return the channels of a tensor that layers sum over, as a site.

    A LayerNormalization over the last axis, or a Mul with a constant for each channel, makes the tensor, and
    nothing but the layers reads it; or one layer makes it and one reads it, with what commutes with factors
    in between. Otherwise nothing takes them in.
    """
    consuming = [inputs_of(node) for node in layers]
    are_alone = len(walk.uses(tensor)) == len(layers)
    producing = _factors_of(tensor) if are_alone and finder.may_change(tensor) else []
    site = finder.before(layers[0]) if len(layers) == 1 and not producing else None
    if site is not None:
        return replace(site, tensors=[tensor])
    return Site(consuming[0].channels, [tensor], producing, consuming, is_shared=True)


def _factors_of(tensor: gs.Tensor) -> list[PerChannel]:
    """Return the initializers with a number for each channel of the last axis by which a node makes it."""
    node = tensor.inputs[0]
    if onnx_op(node) == "LayerNormalization" and node.outputs[0] is tensor:
        axes = node.attrs.get("axis", -1)
        is_last = axes == -1 or (tensor.shape is not None and axes == len(tensor.shape) - 1)
        held = [PerChannel(node, i, -1) for i, one in enumerate(node.inputs) if i and not one.is_empty()]
        return held if is_last and all(_is_vector(one.constant) for one in held) else []
    if onnx_op(node) == "Mul" and tensor.shape:
        channels = tensor.shape[-1]
        vectors = [i for i, one in enumerate(node.inputs) if _is_vector(one) and one.shape[-1] == channels]
        return [PerChannel(node, i, -1) for i in vectors[:1]]
    return []


def _is_vector(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and dtypes.is_type(tensor, dtypes.FLOAT) and len(tensor.shape) == 1
