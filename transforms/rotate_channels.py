"""Orthogonal matrices that spread outlying channels over all, between the layers that make and read them."""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np
import onnx_graphsurgeon as gs

from ops.rotations import Rotation, rotate, rotate_deviations
from transforms.graph import walk
from transforms.graph.lazy_values import constant
from transforms.graph.left_operands import rows_of
from transforms.graph.mixed_channels import HeadFinder, MixedConstant, Recall, anew
from transforms.graph.residual_streams import Stream, StreamFinder
from transforms.graph.selection import Exclusion, resolve
from transforms.graph.stream_norms import Norm, Place

log = logging.getLogger(__name__)


def rotate_channels(
    graph: gs.Graph, names: Collection[str], *, exclude: Exclusion = None, recall: Recall = anew
) -> int:
    """Rotate the channels of named tensors of the outermost graph; return how many were rotated.

    * A tensor that a MatMul or Gemm multiplies with a constant matrix, of channels that one such layer makes:
      values of attention are, for the layer after it. The channels of each head are multiplied with an
      orthogonal matrix (:func:`ops.rotations.rotate`), in the weight and bias of the layer that makes them,
      and with its inverse in the weight of the one that reads them (QuaRot, arXiv 2404.00456). Heads are kept
      apart, as each has scores of its own.
    * The residual stream of a transformer that normalizes before its layers, by the name of what the first of
      its norms reads: all that writes the stream is rotated, and rotated back in the layers that read it.
      Before that, what the norms multiply with and add goes into these layers. Root mean squares of rows stay
      the same; if the norms subtract means, the matrix keeps those
      (:func:`ops.rotations.rotate_deviations`), and no layer has to be centred.

    ``recall`` remembers rotated weights, for copies of the graph. No node is added. The same model in real
    arithmetic; each rotation rounds weights to float32 once.

    Does nothing to tensors that are not there, or of which another node takes channels; if a weight has
    another user; and for nodes in ``exclude``.
    """
    if not names:
        return 0
    left_out, new = resolve(exclude, graph), walk.Names(graph)
    heads = {one.reader.inputs[0].name: one for one in HeadFinder(graph, left_out).heads().values()}
    streams = (
        {one.name: one for one in StreamFinder(graph, left_out).streams()} if set(names) - set(heads) else {}
    )
    count = 0
    for name in names:
        if name in heads:
            tensor = heads[name].reader.inputs[0]
            heads[name].mix(rotate, recall)
        elif name in streams:
            tensor = streams[name].first
            _rotate(streams[name], new, recall)
        else:
            log.debug("'%s': no channels that can be rotated", name)
            continue
        tensor.name = new.derive(tensor.name, "rotated")
        count += 1
    return count


def _rotate(stream: Stream, names: walk.Names, recall: Recall) -> None:
    """Rotate a stream, its norms without scales."""
    rotation: Rotation = rotate_deviations if stream.keeps_mean else rotate
    groups = np.arange(stream.channels)[None]
    for norm in stream.norms:
        _fold_offset(norm, rotation, names)
    for norm in stream.norms:
        scale = norm.node.inputs[norm.scale]
        factors = scale.values.astype(np.float64)
        for node in norm.readers:
            axis = -1 if node.attrs.get("transB", 0) else -2
            MixedConstant(node.inputs[1], axis, groups, factors).mix(rotation, recall)
        ones = np.ones(stream.channels, np.float32)
        norm.node.inputs[norm.scale] = gs.Constant(names.derive(scale.name, "rotated"), ones)
    for place in stream.places:
        MixedConstant(_own(place, names), place.axis, groups).mix(rotation, recall)


def _fold_offset(norm: Norm, rotation: Rotation, names: walk.Names) -> None:
    """Put what a norm adds into the biases of its readers, or in front of what it multiplies with."""
    if norm.offset is None:
        return
    old = norm.node.inputs[norm.offset]
    offset = old.values.astype(np.float64)
    new = np.zeros_like(offset)
    if norm.biases:
        for node, place in zip(norm.readers, norm.biases, strict=True):
            bias = _own(place, names)
            weight = rows_of(node, node.inputs[1].values).astype(np.float64)
            bias.values = (bias.values + offset @ weight).astype(np.float32)
    elif offset.any():
        new = rotation(offset / norm.node.inputs[norm.scale].values)
    name = names.derive(old.name, "rotated")
    norm.node.inputs[norm.offset] = gs.Constant(name, new.astype(np.float32))


def _own(place: Place, names: walk.Names) -> gs.Constant:
    """Return the constant at a place, a copy if it has other users."""
    tensor = place.node.inputs[place.index]
    if not walk.is_read_once(tensor):
        tensor = constant(names.derive(tensor.name, "rotated"), tensor._values)
        place.node.inputs[place.index] = tensor
    return tensor
