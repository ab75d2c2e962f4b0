"""The table of operators that can be differentiated. To add one, add a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

import ops
from transforms.gradients import elementwise as elementwise
from transforms.gradients import moves as moves
from transforms.gradients import products as products
from transforms.gradients import reductions as reductions
from transforms.gradients.step import Step
from transforms.graph.rewire import STANDARD_DOMAINS

ANY = None


@dataclass(frozen=True)
class Rule:
    """How the gradient of an input follows from those of the outputs.

    ``inputs`` are those that it covers, ANY for all; ``several``: it takes gradients of all outputs, not of
    the first alone; ``straight``: a rounding, which may produce and read other types than float32.
    """

    make: Callable[[Step, int], gs.Tensor]
    inputs: tuple[int, ...] | None = (0,)
    several: bool = False
    straight: bool = False


_SLOPES = {op: Rule(elementwise.through_derivative(slope)) for op, slope in elementwise.DERIVATIVES.items()}

RULES: dict[str, Rule] = {
    **_SLOPES,
    "Conv": Rule(products.convolution),
    "ConvTranspose": Rule(products.transposed_convolution),
    "Gemm": Rule(products.gemm, ANY),
    "MatMul": Rule(products.matmul, ANY),
    "Add": Rule(elementwise.add, ANY),
    "Sum": Rule(elementwise.add, ANY),
    "Sub": Rule(elementwise.sub, ANY),
    "Mul": Rule(elementwise.mul, ANY),
    "Div": Rule(elementwise.div, ANY),
    "Pow": Rule(elementwise.power),
    "Max": Rule(elementwise.extremum, ANY),
    "Min": Rule(elementwise.extremum, ANY),
    "Where": Rule(elementwise.where, (1, 2)),
    "Neg": Rule(lambda s, index: s("Neg", s.g)),
    "Relu": Rule(elementwise.relu),
    "Clip": Rule(elementwise.clip),
    "LeakyRelu": Rule(elementwise.leaky),
    "PRelu": Rule(elementwise.leaky),
    "HardSigmoid": Rule(elementwise.hard_sigmoid),
    "HardSwish": Rule(elementwise.hard_swish),
    "Elu": Rule(elementwise.elu),
    "Selu": Rule(elementwise.elu),
    "Gelu": Rule(elementwise.gelu),
    "Softmax": Rule(reductions.softmax),
    "LogSoftmax": Rule(reductions.log_softmax),
    "LayerNormalization": Rule(reductions.layer_normalization),
    "InstanceNormalization": Rule(reductions.instance_normalization),
    "BatchNormalization": Rule(reductions.batch_normalization),
    "ReduceSum": Rule(reductions.reduce_sum),
    "ReduceMean": Rule(reductions.reduce_mean),
    "ReduceMax": Rule(reductions.reduce_extremum),
    "ReduceMin": Rule(reductions.reduce_extremum),
    "ReduceSumSquare": Rule(reductions.reduce_square),
    "ReduceL2": Rule(reductions.reduce_norm),
    "GlobalAveragePool": Rule(reductions.reduce_mean),
    "GlobalMaxPool": Rule(reductions.global_max_pool),
    "AveragePool": Rule(reductions.average_pool),
    "MaxPool": Rule(reductions.max_pool),
    "Reshape": Rule(moves.reshaped),
    "Flatten": Rule(moves.reshaped),
    "Squeeze": Rule(moves.reshaped),
    "Unsqueeze": Rule(moves.reshaped),
    "Transpose": Rule(moves.transpose),
    "Identity": Rule(moves.unchanged),
    "Dropout": Rule(moves.dropout),
    "Concat": Rule(moves.concat, ANY),
    "Split": Rule(moves.split, several=True),
    "Slice": Rule(moves.slice_),
    "Pad": Rule(moves.pad),
    "Expand": Rule(moves.expand),
    "Gather": Rule(moves.gather),
    "GatherElements": Rule(moves.moved),
    "GatherND": Rule(moves.moved),
    "Tile": Rule(moves.moved),
    "ScatterND": Rule(moves.scatter_into, (0, 2)),
    "ScatterElements": Rule(moves.scatter_into, (0, 2)),
    "SpaceToDepth": Rule(moves.space_to_depth),
    "DepthToSpace": Rule(moves.depth_to_space),
    "Trilu": Rule(moves.trilu),
    "Resize": Rule(moves.resize),
    "Cast": Rule(moves.unchanged, straight=True),
    "QuantizeLinear": Rule(moves.unchanged, straight=True),
    "DequantizeLinear": Rule(moves.unchanged, straight=True),
}
"""The rules for ONNX's own operators."""

OWN_RULES: dict[str, Rule] = {
    op: Rule(moves.unchanged, straight=True)
    for op in (ops.formats.BFP, ops.formats.MX, ops.formats.LINEAR, "ExtendedDequantizeLinear")
}
"""The rules for our operators: roundings count as the identity."""

QUANTIZERS = frozenset({"QuantizeLinear", ops.formats.LINEAR, "DynamicQuantizeLinear"})
"""Operators whose integer outputs stand for their float inputs."""

FLAT = frozenset({"Shape", "Size", "Sign", "Floor", "Ceil", "Round", "EyeLike", "Hardmax"})
"""Operators whose outputs, of any type, do not change when their inputs change a little."""


def rule_for(node: gs.Node) -> Rule | None:
    """Return the rule for a node, or None if there is none."""
    if node.domain in STANDARD_DOMAINS:
        return RULES.get(node.op)
    return OWN_RULES.get(node.op) if node.domain in (ops.DOMAIN, ops.AMD_DOMAIN) else None
