"""Recurrent operators: which of their inputs are weights.

LSTM, GRU and RNN read W [D, G * H, I] and R [D, G * H, H]: D directions, G gates of H rows each, in rows of
as many numbers as an input or a state has. Their biases B and peepholes P are a few numbers beside.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.rewire import onnx_op

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})

WEIGHTS = (1, 2)
"""The inputs W and R."""

ROWS_RANK = 3


def is_recurrent(node: gs.Node) -> bool:
    """Return whether the node is a recurrent operator of ONNX's own."""
    return onnx_op(node) in RECURRENT


def is_recurrent_weight(node: gs.Node, index: int) -> bool:
    """Return whether an input is a stored weight of a recurrent operator."""
    tensor = node.inputs[index]
    is_stored = index in WEIGHTS and isinstance(tensor, gs.Constant) and len(tensor.shape) == ROWS_RANK
    return is_stored and is_recurrent(node)
