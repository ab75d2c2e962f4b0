"""Fused operators of ONNX Runtime's optimizers, split into ONNX's own.

A session that saves its optimized model (``optimized_model_filepath``, extended level) writes them in the
domain com.microsoft, as do the transformer optimizer and builders of language models. No number format here
applies to such a node, and other runtimes do not support it. The operators are defined in
``docs/ContribOperators.md`` of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import onnx
import onnx_graphsurgeon as gs

from transforms.contrib_ops.attentions import split_attention, split_multi_head_attention
from transforms.contrib_ops.layers import (
    split_conv,
    split_embed_norm,
    split_gelu,
    split_gemm,
    split_matmul,
    split_norm,
    split_quick_gelu,
    split_skip_norm,
)
from transforms.contrib_ops.node_builder import ModelFacts, NodeBuilder
from transforms.graph import walk
from transforms.graph.proto_graphs import bodies
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS
from transforms.graph.schemas import find_schema
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.model import proto_pass
from transforms.model.proto_facts import Facts

Operator = tuple[str, str]
"""A domain and a name."""

Split = Callable[[NodeBuilder], bool]

OPSET = 13
"""First opset in which nodes are split."""


def split_fused(
    graph: gs.Graph,
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    only_unknown: bool = False,
) -> int:
    """Split the operators of :data:`FUSED`, in the bodies of If, Loop and Scan too; return how many.

    The new nodes compute the same up to intermediate rounding; GELU, LayerNormalization and RMSNormalization
    are single nodes from opsets 20, 17 and 23 on. A node stays if it is in ``exclude``, if the statistics
    that a norm with a sum outputs are used, if an attention has past keys, causality or a mask of four axes,
    if a required rank or width is not known, if ONNX has no such activation, and below opset 13.
    ``only_unknown``: split only nodes in ONNX's own domain that ONNX does not define, because of which
    onnx.checker refuses the model.
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    excluded = resolve(exclude, graph, nodes)
    unknown = {key for key in FUSED if key[0] == "" and find_schema(key[1], "", graph.opset) is None}
    operators = {key: FUSED[key] for key in FUSED if key in unknown or (key[0] and not only_unknown)}
    fused = (node for node in walk.nodes(graph) if _operator(node) in operators)
    wanted = {node.outputs[0].name for node in fused if node not in excluded}
    if not wanted:
        return 0
    split, last = _Split(graph, operators, wanted), -1
    while split.left and split.count > last:  # new nodes reveal the ranks of other inputs
        last = split.count
        proto_pass.apply(graph, split.apply)
    return split.count


def _operator(node: gs.Node | onnx.NodeProto) -> Operator:
    """Return the domain and the name of a node's operator."""
    op = node.op if isinstance(node, gs.Node) else node.op_type
    return "" if node.domain in STANDARD_DOMAINS else str(node.domain), str(op)


class _Split:
    """Passes over a model, and how many nodes they have split."""

    def __init__(self, graph: gs.Graph, operators: Mapping[Operator, Split], wanted: Collection[str]) -> None:
        """Start with the operators to split, and the first outputs of the nodes to split."""
        self._operators = operators
        self._opset, self._names, self._wanted = graph.opset, walk.Names(graph), wanted
        self.count, self.left = 0, len(wanted)

    def apply(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """Return the model with nodes split, or None if there are none."""
        before, self.left = self.count, 0
        self._take(model.graph, Facts(), ModelFacts(model, self._opset, self._names))
        return model if self.count > before else None

    def _take(self, graph: onnx.GraphProto, outer: Facts, model_facts: ModelFacts) -> None:
        facts = outer.inside(graph)
        for node in graph.node:  # bodies first: they are copied with their nodes
            for body in bodies(node):
                self._take(body, facts, model_facts)
        nodes = [
            expanded for node in graph.node for expanded in self._expanded(node, graph, facts, model_facts)
        ]
        del graph.node[:]
        graph.node.extend(nodes)

    def _expanded(
        self, node: onnx.NodeProto, graph: onnx.GraphProto, facts: Facts, model_facts: ModelFacts
    ) -> Sequence[onnx.NodeProto]:
        take_apart = self._operators.get(_operator(node))
        if take_apart is None or node.output[0] not in self._wanted:
            return [node]
        builder = NodeBuilder(node, graph, facts, model_facts)
        if not take_apart(builder):
            self.left += 1
            return [node]
        self.count += 1
        return builder.nodes


FUSED: Mapping[Operator, Split] = MappingProxyType(
    {
        ("", "LayerNormalization"): split_norm,
        ("", "SimplifiedLayerNormalization"): partial(split_norm, centred=False),
        (RUNTIME_DOMAIN, "Attention"): split_attention,
        (RUNTIME_DOMAIN, "BiasGelu"): split_gelu,
        (RUNTIME_DOMAIN, "EmbedLayerNormalization"): split_embed_norm,
        (RUNTIME_DOMAIN, "FastGelu"): partial(split_gelu, tanh=True),
        (RUNTIME_DOMAIN, "FusedConv"): split_conv,
        (RUNTIME_DOMAIN, "FusedGemm"): split_gemm,
        (RUNTIME_DOMAIN, "FusedMatMul"): split_matmul,
        (RUNTIME_DOMAIN, "Gelu"): split_gelu,
        (RUNTIME_DOMAIN, "MultiHeadAttention"): split_multi_head_attention,
        (RUNTIME_DOMAIN, "QuickGelu"): split_quick_gelu,
        (RUNTIME_DOMAIN, "SkipLayerNormalization"): split_skip_norm,
        (RUNTIME_DOMAIN, "SkipSimplifiedLayerNormalization"): partial(split_skip_norm, centred=False),
    }
)
"""How to split each operator, by domain and name; the function returns false if a node has to stay."""
