"""A choice of nodes holds in a graph whose nodes were all replaced since: by the optimizer, by a newer opset.

Oracle: the same rewrite with nodes that are chosen in the new graph.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import build, corpus, small_networks
from tests.pipelines.test_exclusion_from_fusion import decomposed
from transforms import model_io
from transforms.balance_channels import balance_channels
from transforms.conversion.inspect_bf16 import tally
from transforms.convert_opset import convert_opset
from transforms.convert_type import convert_bodies, convert_type
from transforms.eliminate_identities import eliminate_identities
from transforms.equalize_layers import equalize_layers
from transforms.fold_weights import fold_weights
from transforms.fuse_gelu import find_gelu, fuse_gelu
from transforms.fuse_hardswish import fuse_hardswish
from transforms.fuse_layernorm import find_layernorm, fuse_layernorm
from transforms.fuse_matmul import fuse_matmul
from transforms.fuse_matmul_add import fuse_matmul_add
from transforms.graph import dtypes, walk
from transforms.graph.grids import Grid
from transforms.graph.selection import NodeSet, Selection, select
from transforms.insert_bf16_qdq import insert_bf16_qdq
from transforms.insert_cast import insert_cast
from transforms.insert_qdq import insert_qdq
from transforms.model import graph_proto
from transforms.optimize import optimize
from transforms.plan.rounding_plan import RoundingPlan
from transforms.remove_qdq import remove_qdq
from transforms.saturate import saturate
from transforms.saturate_activations import saturate_activations
from transforms.simulate_bf16 import simulate_bf16
from transforms.split_gemm import split_gemm

Rewrite = Callable[..., object]


def huge() -> onnx.ModelProto:
    """Return a weight that BF16 cannot hold and that only the node 'add' reads."""
    nodes = [onnx.helper.make_node("Add", ["x", "w"], ["y"], "add")]
    ends = build.value("x", ["N", 2]), build.value("y", ["N", 2])
    return build.model(nodes, ends[:1], ends[1:], {"w": np.array([3.4e38, 1], np.float32)})


def uneven() -> onnx.ModelProto:
    """Return two layers whose channels have unlike ranges."""
    nodes = [
        onnx.helper.make_node("Conv", ["x", "a"], ["c"], "first", group=4),
        onnx.helper.make_node("Relu", ["c"], ["r"], "relu"),
        onnx.helper.make_node("Conv", ["r", "b"], ["y"], "second"),
    ]
    weights = {"a": np.ones((4, 1, 1, 1), np.float32), "b": np.ones((4, 4, 1, 1), np.float32)}
    weights["a"][:, 0, 0, 0] = 1, 2, 3, 4096
    ends = build.value("x", ["N", 4, 2, 2]), build.value("y", ["N", 4, 2, 2])
    return build.model(nodes, ends[:1], ends[1:], weights)


def gemm() -> onnx.ModelProto:
    return corpus.parse("(float[N, 4] x) => (float[N, 64] y) { [dense] y = Gemm(x, w0, b0) }")


def passing() -> onnx.ModelProto:
    return corpus.parse("(float[N] x) => (float[N] y) { [copy] a = Identity(x) [after] y = Tanh(a) }")


def quantized() -> onnx.ModelProto:
    """Return a layer whose input is quantized."""
    graph = model_io.load(gemm())
    insert_qdq(graph, {"x": Grid("int8", 0.1)})
    return graph_proto.export_model(graph)


def rounded() -> onnx.ModelProto:
    """Return a layer with pairs of Casts, two of them of constants."""
    graph = model_io.load(gemm())
    insert_cast(graph)
    return graph_proto.export_model(graph)


def carrying() -> onnx.ModelProto:
    return corpus.parse(
        """(float[N] x, bool c) => (float[N] y) { [before] a = Tanh(x)
        [choice] b = If (c) <then_branch = t () => (float[N] p) { [in_then] p = Exp(a) },
                             else_branch = e () => (float[N] q) { [in_else] q = Neg(a) }>
        [after] y = Tanh(b) }"""
    )


def decomposed_at_20() -> onnx.ModelProto:
    """Return the decomposed functions at the first opset that has Gelu."""
    graph = model_io.load(decomposed())
    convert_opset(graph, 20)
    return graph_proto.export_model(graph)


def with_casts(graph: gs.Graph, exclude: Selection | None) -> int:
    """Convert bodies of a graph that has its Casts already."""
    insert_cast(graph, round_before_relu=True)
    return convert_bodies(graph, "bfloat16", exclude=exclude)


def counted(graph: gs.Graph, exclude: Selection | None) -> object:
    return tally(graph, exclude, "simulate_bf16")


def roundings(graph: gs.Graph, exclude: Selection | None) -> list[str]:
    return [one.tensor.name for one in RoundingPlan(graph, dtypes.BFLOAT16, exclude=exclude).roundings]


LAYERS = small_networks.residual
CASES: list[tuple[Rewrite, Callable[[], onnx.ModelProto], tuple[str, ...]]] = [
    (insert_cast, LAYERS, ("add", "pool", "flat")),
    (insert_bf16_qdq, LAYERS, ("add", "pool", "flat")),
    (convert_type, LAYERS, ("add", "pool", "flat")),
    (simulate_bf16, LAYERS, ("conv", "dense")),
    (saturate_activations, LAYERS, ("add", "pool", "flat")),
    (saturate, huge, ("add",)),
    (with_casts, carrying, ("choice",)),
    (fuse_layernorm, decomposed, ("centre",)),
    (find_layernorm, decomposed, ("centre",)),
    (fuse_gelu, decomposed_at_20, ("erf",)),
    (find_gelu, decomposed, ("erf",)),
    (fuse_hardswish, decomposed, ("gate",)),
    (fuse_matmul, small_networks.branches, ("q", "k")),
    (fuse_matmul_add, LAYERS, ("dense",)),
    (eliminate_identities, passing, ("copy",)),
    (split_gemm, gemm, ("dense",)),
    (remove_qdq, quantized, ("dense",)),
    (fold_weights, rounded, ("dense",)),
    (optimize, LAYERS, ("conv",)),
    (balance_channels, uneven, ("first",)),
    (equalize_layers, uneven, ("first",)),
    (counted, LAYERS, ("add", "pool", "flat")),
    (roundings, LAYERS, ("add", "pool", "flat")),
]
IDS = [rewrite.__name__ for rewrite, _, _ in CASES]


def result(rewrite: Rewrite, graph: gs.Graph, exclude: Selection | NodeSet | None) -> tuple[object, bytes]:
    returned = rewrite(graph, exclude=exclude)
    return returned, graph_proto.export_model(graph).SerializeToString(deterministic=True)


@pytest.mark.parametrize(("rewrite", "make", "names"), CASES, ids=IDS)
@pytest.mark.parametrize("resolved", (False, True))
def test_nodes_chosen_before_are_left_alone_after(
    rewrite: Rewrite, make: Callable[[], onnx.ModelProto], names: tuple[str, ...], resolved: bool
) -> None:
    old, new = model_io.load(make()), model_io.load(make())
    before: Selection | NodeSet = select(old, names=names)
    if resolved:
        before = before.resolve_in(old)
    expected = result(rewrite, model_io.load(make()), None)
    chosen = model_io.load(make())
    with_exclusion = result(rewrite, chosen, select(chosen, names=names))
    assert with_exclusion != expected, "the nodes chosen make no difference"
    assert result(rewrite, new, before) == with_exclusion


@pytest.mark.parametrize("rewrite", (insert_cast, insert_bf16_qdq, saturate_activations, simulate_bf16))
def test_a_second_run_with_the_same_choice_changes_nothing(rewrite: Callable[..., int]) -> None:
    """What the first run put in front of a node that was chosen is there to stay."""
    graph = model_io.load(small_networks.residual(named=False))
    chosen = select(graph, op_types=["Add", "Relu", "Flatten"])
    assert rewrite(graph, exclude=chosen) > 0
    assert rewrite(graph, exclude=chosen) == 0


def test_nodes_of_another_graph_are_refused() -> None:
    graph, other = (model_io.load(small_networks.residual()) for _ in range(2))
    with pytest.raises(ValueError, match="none of the 1 nodes chosen is a node of the graph"):
        insert_cast(graph, exclude=NodeSet(other.nodes[:1]))


@pytest.mark.parametrize(("rewrite", "make", "names"), CASES, ids=IDS)
def test_nodes_are_all_but_those_left_out(
    rewrite: Rewrite, make: Callable[[], onnx.ModelProto], names: tuple[str, ...]
) -> None:
    """Oracle: the same rewrite with all other nodes left out, layers where the nodes lie between layers."""
    if "nodes" not in signature(rewrite).parameters:
        return
    ours, theirs = model_io.load(make()), model_io.load(make())
    chosen, same = (select(graph, names=names).resolve_in(graph) for graph in (ours, theirs))
    between = {"Cast", "QuantizeLinear", "DequantizeLinear"}
    others = NodeSet(node for node in walk.nodes(theirs) if node not in same and node.op not in between)
    found = rewrite(ours, nodes=chosen), graph_proto.export_model(ours).SerializeToString(deterministic=True)
    assert found == result(rewrite, theirs, others)
