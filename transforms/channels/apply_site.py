"""Channels of a site divided by powers of two where they are made, and multiplied where they are read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.channels.edits import Edits, MovedWeights, scale, scaled
from transforms.channels.own_products import add_products
from transforms.channels.per_channel import Channels, Exponents, PerChannel
from transforms.channels.sites import Site
from transforms.scheme.outlier_move import OutlierMove

log = logging.getLogger(__name__)

_ALPHA, _BETA = 1 / 6, 0.5  # of the HardSigmoid in a HardSwish


def move_channels(
    graph: gs.Graph,
    moves: Mapping[str, OutlierMove],
    site_of: Callable[[str, OutlierMove], Site | None],
    moved_weights: MovedWeights | None = None,
) -> int:
    """Move channels of tensors, by name, where ``site_of`` finds a site; return how many tensors.

    ``moved_weights``: what was made of weights that several layers read. ValueError for a channel that is
    not there.
    """
    edits, count = Edits(graph, "move", moved_weights), 0
    try:
        for name, move in moves.items():
            site = site_of(name, move)
            if site is not None:
                exponents = move.of_channels(name, site.channels)
                apply_site(edits, site, exponents, np.array(move.own, np.int64))
                count += 1
            else:
                log.debug("'%s': no channels that can be moved", name)
    finally:
        edits.insertions.place(graph)
    return count


def apply_site(edits: Edits, site: Site, exponents: Exponents, own: Channels) -> None:
    """Divide the channels of a site by powers of two, and give ``own`` ones products of their own."""
    if site.gate is not None:
        _restore(edits, site, site.gate, exponents)
    source = site.tensor
    divided = _divide(edits, site, exponents, own)
    if own.size:
        add_products(edits, source, site.consuming, own)
    for weight in site.consuming:
        weight.node.inputs[0] = divided
        _multiply(edits, weight, exponents, own)


def _divide(edits: Edits, site: Site, exponents: Exponents, own: Channels) -> gs.Tensor:
    """Return the tensor with divided channels, those that get products of their own being 0."""
    if not site.producing or own.size:
        factors = np.ldexp(np.float32(1), -exponents)
        factors[own] = 0
        multiply = edits.multiplied(site.tensor, factors)
        edits.insert_after(site.tensor, [multiply])
        return multiply.outputs[0]
    for tensor in site.tensors:
        tensor.name = edits.names.derive(tensor.name, "moved")
    for held in site.producing if site.is_shared else ():
        copy = gs.Constant(edits.names.derive(held.constant.name, "moved"), held.constant.values)
        held.node.inputs[held.index] = copy
    scale(site.divided(exponents))
    return site.tensor


def _multiply(edits: Edits, weight: PerChannel, exponents: Exponents, own: Channels) -> None:
    """Multiply the rows of a weight, without channels that go elsewhere; a copy of it if others read it.

    Those with the same move read one.
    """
    laid, source = weight.laid(exponents), weight.constant
    key = id(source), weight.axis, exponents.tobytes(), own.tobytes()

    def _moved(values: NDArray[np.float32]) -> NDArray[np.float32]:
        values = scaled([laid], values)
        weight.rows(values)[own] = 0
        return values

    if key in edits.moved_weights:
        weight.node.inputs[weight.index] = edits.moved_weights[key][1]
        return
    edits.change(weight.node, weight.index, _moved)
    if weight.constant is not source:
        edits.moved_weights[key] = source, weight.constant


def _restore(edits: Edits, site: Site, gate: gs.Node, exponents: Exponents) -> None:
    """Give a gate the numbers as they were."""
    source, result = site.gated, gate.outputs[0]
    places = len(site.producing[0].constant.shape) - 2  # axes after that of the channels
    factors = np.ldexp(np.float32(1), exponents).reshape(-1, *(1,) * places)
    multiply = edits.multiplied(source, factors, "restore")
    if gate.op == "HardSwish":  # the product of a tensor and its HardSigmoid
        factor = edits.variable(result, "factor")
        gate.op, gate.attrs, gate.outputs = "HardSigmoid", {"alpha": _ALPHA, "beta": _BETA}, [factor]
        name = edits.names.derive(gate.name or result.name, "product")
        edits.insertions.add(edits.graph, gate, [gs.Node("Mul", name, {}, [source, factor], [result])])
    gate.inputs[0] = multiply.outputs[0]
    edits.insert_after(source, [multiply])
