"""The table of operators that can be differentiated. To add one, add a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_graphsurgeon as gs

import ops
from transforms.gradients import elementwise, moves, products, reductions
from transforms.gradients.step import Step
from transforms.graph.rewire import STANDARD_DOMAINS

ANY = None


@dataclass(frozen=True)
class Rule:
    """How the gradient of an input follows from those of the outputs.

    ``inputs`` are those that it covers, ANY for all; ``several``: it takes gradients of all outputs, not of
    the first alone; ``straight``: a rounding, which may produce and read other types than float32.
    """

    make: Callable[[Step], gs.Tensor]
    inputs: tuple[int, ...] | None = (0,)
    several: bool = False
    straight: bool = False


def _of_derivative(derivative: elementwise.Derivative) -> Rule:
    return Rule(lambda s: s("Mul", s.g, derivative(s)))


_SLOPES = {op: _of_derivative(derivative) for op, derivative in elementwise.DERIVATIVES.items()}
_RESHAPED = Rule(lambda s: s.reshape(s.g, s.x))
_ROUNDED = Rule(lambda s: s.g, straight=True)

RULES: dict[str, Rule] = {
    **_SLOPES,
    "Conv": Rule(products.convolution),
    "ConvTranspose": Rule(products.transposed_convolution),
    "Gemm": Rule(products.gemm, ANY),
    "MatMul": Rule(products.matmul, ANY),
    "Add": Rule(lambda s: s.summed(s.g), ANY),
    "Sum": Rule(lambda s: s.summed(s.g), ANY),
    "Sub": Rule(lambda s: s.summed(s("Neg", s.g) if s.index else s.g), ANY),
    "Mul": Rule(lambda s: s.summed(s("Mul", s.g, s.node.inputs[1 - s.index])), ANY),
    "Div": Rule(elementwise.div, ANY),
    "Pow": Rule(elementwise.power),
    "Max": Rule(elementwise.extremum, ANY),
    "Min": Rule(elementwise.extremum, ANY),
    "Where": Rule(elementwise.where, (1, 2)),
    "Neg": Rule(lambda s: s("Neg", s.g)),
    "Relu": Rule(lambda s: elementwise.masked(s, s("Greater", s.y, 0.0))),  # from y: Conv and Relu stay fused
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
    "ReduceSum": Rule(lambda s: s("Expand", reductions.restored(s, s.g), s.shape(s.x))),
    "ReduceMean": Rule(reductions.reduce_mean),
    "ReduceMax": Rule(reductions.reduce_extremum),
    "ReduceMin": Rule(reductions.reduce_extremum),
    "ReduceSumSquare": Rule(lambda s: s("Mul", s("Mul", s.x, 2.0), reductions.restored(s, s.g))),
    "ReduceL2": Rule(lambda s: s("Mul", s.x, reductions.restored(s, s("Div", s.g, s.y)))),
    "GlobalAveragePool": Rule(reductions.reduce_mean),
    "GlobalMaxPool": Rule(lambda s: reductions.chosen(s, s.y, s.g, list(range(2, s.rank(s.x))))),
    "AveragePool": Rule(reductions.average_pool),
    "MaxPool": Rule(reductions.max_pool),
    "Reshape": _RESHAPED,
    "Flatten": _RESHAPED,
    "Squeeze": _RESHAPED,
    "Unsqueeze": _RESHAPED,
    "Transpose": Rule(moves.transpose),
    "Identity": Rule(lambda s: s.g),
    "Dropout": Rule(moves.dropout),
    "Concat": Rule(moves.concat, ANY),
    "Split": Rule(moves.split, several=True),
    "Slice": Rule(moves.slice_),
    "Pad": Rule(moves.pad),
    "Expand": Rule(lambda s: s.summed(s.g)),
    "Gather": Rule(moves.gather),
    "GatherElements": Rule(moves.moved),
    "GatherND": Rule(moves.moved),
    "Tile": Rule(moves.moved),
    "ScatterND": Rule(moves.scatter_into, (0, 2)),
    "ScatterElements": Rule(moves.scatter_into, (0, 2)),
    "SpaceToDepth": Rule(lambda s: s("DepthToSpace", s.g, blocksize=s.node.attrs["blocksize"])),
    "DepthToSpace": Rule(moves.depth_to_space),
    "Trilu": Rule(lambda s: s("Trilu", s.g, s.input(1), upper=s.attribute("upper", 1))),
    "Resize": Rule(moves.resize),
    "Cast": _ROUNDED,
    "QuantizeLinear": _ROUNDED,
    "DequantizeLinear": _ROUNDED,
}
"""The rules for ONNX's own operators."""

OWN_RULES = dict.fromkeys(
    (ops.formats.BFP, ops.formats.MX, ops.formats.LINEAR, "ExtendedDequantizeLinear"), _ROUNDED
)
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
