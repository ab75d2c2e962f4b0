"""Recurrent operators and their weight inputs.

LSTM, GRU and RNN read W [D, G * H, I] and R [D, G * H, H]: D directions, G gates with H rows each. Their
biases B and peepholes P are small.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.rewire import onnx_op

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})

WEIGHTS = (1, 2)
"""The inputs W and R."""

ROWS_RANK = 3


def is_recurrent(node: gs.Node) -> bool:
    """Return whether the node is a recurrent operator of standard ONNX."""
    return onnx_op(node) in RECURRENT


def is_recurrent_weight(node: gs.Node, index: int) -> bool:
    """Return whether an input is a stored weight of a recurrent operator."""
    tensor = node.inputs[index]
    is_stored = index in WEIGHTS and isinstance(tensor, gs.Constant) and len(tensor.shape) == ROWS_RANK
    return is_stored and is_recurrent(node)
