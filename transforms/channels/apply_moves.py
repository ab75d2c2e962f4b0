"""The moves that a scheme records, applied to a prepared float graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx_graphsurgeon as gs

from ops.legal_names import did_you_mean
from transforms.channels.edits import MovedWeights
from transforms.channels.move_outliers import move_outliers
from transforms.channels.scale_channels import scale_channels
from transforms.graph.selection import Exclusion
from transforms.scheme.outlier_move import OutlierMove


def apply_moves(
    graph: gs.Graph, moves: Mapping[str, OutlierMove], *, exclude: Exclusion = None
) -> Counter[str]:
    """Move channels of tensors, by name; return how many were ``moved`` and ``scaled``.

    The same graph and moves make the same weights bit for bit. ValueError for a tensor of which nothing can
    be moved, and a channel that it does not have.
    """
    found, made = Counter[str](), MovedWeights()
    for name, move in moves.items():
        if move_outliers(graph, {name: move}, exclude=exclude, made=made):
            found["moved"] += 1
        elif scale_channels(graph, {name: move}, exclude=exclude):
            found["scaled"] += 1
        else:
            reason = f"outliers entry '{name}' is not a tensor that layers multiply with a matrix"
            others = (str(other) for other in graph.tensors() if other != name)
            raise ValueError(reason + did_you_mean(name, others))
    return found
