"""Read mixtures of experts from ONNX Runtime's operator MoE."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from transforms.features.experts.mixture import (
    ACTIVATIONS,
    GATED,
    Mixture,
    Routing,
    Stack,
    joined,
    out_of_halves,
)
from transforms.features.experts.operators import is_moe
from transforms.graph import dtypes
from transforms.graph.constants import load

log = logging.getLogger(__name__)

_DATA, _LOGITS, _FIRST, _SECOND, _THIRD = 0, 1, 2, 4, 6
_RANK_OF_STACK = 3
_CONSTANTS = ("activation_alpha", "activation_beta", "swiglu_limit")
_FUSED_IN_TURNS, _FUSED_IN_HALVES = 1, 2
"""Values of swiglu_fusion: rows of gate and value share one matrix, interleaved or in halves."""


def mixtures(graph: gs.Graph) -> Iterator[tuple[gs.Node, Mixture]]:
    """Yield the MoE nodes of a graph for which the CPU provider has a kernel; bodies are not entered."""
    for node in [node for node in graph.nodes if is_moe(node)]:
        mixture, why_not = mixture_of(node)
        if mixture is None:
            log.debug("experts of '%s' stay: %s", node.name, why_not)
        else:
            yield node, mixture


def mixture_of(node: gs.Node) -> tuple[Mixture | None, str]:
    """Return the mixture of an MoE, or None and the reason why the CPU provider has no kernel for it."""
    attrs = node.attrs
    if attrs.get("use_sparse_mixer", 0) or attrs.get("swiglu_limit_after_activation", 0):
        return None, "the CPU provider has neither a sparse mixer nor a limit after the activation"
    if not dtypes.is_type(node.inputs[_DATA], dtypes.FLOAT):
        return None, "it is not of float32"
    stacks = [_stack(node, index) for index in (_FIRST, _SECOND, _THIRD)]
    first, second, third = stacks
    if first is None or second is None or (third is None and _given(node, _THIRD)):
        return None, "its weights are not constants"
    activation = str(attrs.get("activation_type", "relu"))
    constants = {name: float(attrs[name]) for name in _CONSTANTS if name in attrs}
    if third is not None and activation in ("silu", GATED):
        constants = constants if activation == GATED else {}
        first, activation = joined(first, third), GATED
    elif third is not None or activation not in (*ACTIVATIONS, GATED):
        return None, f"the CPU provider has no activation '{activation}' that it could be"
    elif activation == GATED and attrs.get("swiglu_fusion", 0) == _FUSED_IN_HALVES:
        first = out_of_halves(first)
    elif activation == GATED and attrs.get("swiglu_fusion", 0) != _FUSED_IN_TURNS:
        return None, "its SwiGLU lacks one of its products"
    of_all = not attrs.get("normalize_routing_weights", 0)
    routing = Routing(int(attrs.get("k", 1)), node.inputs[_LOGITS], of_all=of_all)
    return Mixture(node.inputs[_DATA], routing, first, second, activation, constants), ""


def _given(node: gs.Node, index: int) -> bool:
    return index < len(node.inputs) and not node.inputs[index].is_empty()


def _stack(node: gs.Node, index: int) -> Stack | None:
    """Return the stack of an input with the bias after it, or None if it is absent or computed."""
    weight = node.inputs[index] if _given(node, index) else None
    added = node.inputs[index + 1] if _given(node, index + 1) else None
    if not isinstance(weight, gs.Constant) or len(weight.shape) != _RANK_OF_STACK:
        return None
    if added is not None and not isinstance(added, gs.Constant):
        return None
    experts, outputs, inputs = map(int, weight.shape)
    bias = None if added is None else np.asarray(load(added), np.float32)
    return Stack(weight.name, (experts, outputs, inputs), lambda expert: load(weight)[expert], bias)
