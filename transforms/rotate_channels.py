"""Orthogonal matrices that spread outlying channels over all, between the layers that make and read them."""

from __future__ import annotations

import logging
from collections.abc import Collection

import onnx_graphsurgeon as gs

from ops.rotations import rotation
from transforms.graph import walk
from transforms.graph.mixed_channels import HeadFinder
from transforms.graph.selection import Exclusion, resolve

log = logging.getLogger(__name__)


def rotate_channels(graph: gs.Graph, names: Collection[str], *, exclude: Exclusion = None) -> int:
    """Rotate the channels of named tensors of the outermost graph; return how many were rotated.

    A tensor that a MatMul or Gemm multiplies with a constant matrix, of channels that one such layer makes:
    values of attention are, for the layer after it. The channels of each head are multiplied with an
    orthogonal matrix (:func:`ops.rotations.rotation`), in the weight and bias of the layer that makes them,
    and with its inverse in the weight of the one that reads them (QuaRot, arXiv 2404.00456). Heads are kept
    apart, as each has scores of its own. The same model in real arithmetic; weights are rounded to float32
    once.

    Does nothing to tensors that are not there, or of which another node takes channels; if a weight or bias
    has another user; and for nodes in ``exclude``.
    """
    finder = HeadFinder(graph, resolve(exclude, graph))
    found = {one.reader.inputs[0].name: one for one in finder.heads().values()} if names else {}
    new = walk.Names(graph)
    for name in names:
        if name not in found:
            log.debug("'%s': no channels that can be rotated", name)
            continue
        found[name].mix(rotation(found[name].channels.shape[1]))
        tensor = found[name].reader.inputs[0]
        tensor.name = new.derive(tensor.name, "rotated")
    return sum(name in found for name in names)
