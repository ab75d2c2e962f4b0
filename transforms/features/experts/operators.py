"""ONNX Runtime's float operator for mixtures of experts."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.rewire import RUNTIME_DOMAIN

OPERATOR = "MoE"


def is_moe(node: gs.Node) -> bool:
    """Return whether a node is ONNX Runtime's MoE."""
    return bool(node.op == OPERATOR and node.domain == RUNTIME_DOMAIN)
