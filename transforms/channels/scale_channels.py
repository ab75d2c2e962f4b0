"""Channels between convolutions brought to like ranges, also across SiLU and HardSwish."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from transforms.channels.apply_site import move_channels
from transforms.channels.sites import SiteFinder
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.scheme.outlier_move import OutlierMove


def scale_channels(
    graph: gs.Graph,
    moves: Mapping[str, OutlierMove],
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Divide channels of tensors between convolutions by powers of two; return how many tensors.

    ``moves``, by the name of a tensor of the outermost graph that convolutions (or, after a Flatten, a
    product) alone read, gives the exponent of each channel, 0 for those that it does not name. The
    convolution that makes the tensor takes the factors in, and the layers that read it take them back: bit
    for bit the same model, as long as nothing becomes subnormal or infinite. In between lies what commutes
    with a positive factor (:class:`transforms.channels.sites.SiteFinder`), or one gate: a new Mul
    gives the Sigmoid of x Sigmoid(x), or the HardSigmoid that a HardSwish is made of, the numbers as they
    were. All tensors that change get new names.

    Does nothing to other tensors, to moves with channels that get products of their own, and across nodes in
    ``exclude``. Raises ValueError for a channel that a tensor does not have.
    """
    sites = SiteFinder(graph, resolve(exclude, graph, nodes)).between_convolutions()
    by_name = {str(site.tensor.name): site for site in sites}
    return move_channels(graph, moves, lambda name, move: None if move.own else by_name.get(name))
