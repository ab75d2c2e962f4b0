"""Mixtures of experts in NumPy, and models that say them as ONNX Runtime's MoE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ops.metrics import Sums
from tests.helpers.twin_sessions import open_session

Arrays = dict[str, NDArray]

ACTIVATIONS = {
    "relu": lambda a: np.maximum(a, 0),
    "silu": lambda a: a / (1 + np.exp(-a)),
    "gelu": lambda a: 0.5 * a * (1 + np.vectorize(erf)(a / np.sqrt(2))),
    "identity": lambda a: a,
}
LIMIT, ALPHA, BETA = 1.5, 1.702, 1.0
"""Constants of SwiGLU."""


@dataclass(frozen=True)
class Experts:
    """Sizes of a mixture, and its form: ``fusion`` is swiglu_fusion."""

    activation: str = "silu"
    fusion: int = 0
    is_normalized: bool = False
    has_bias: bool = True
    k: int = 2
    count: int = 4
    width: int = 64
    inner: int = 96

    @property
    def is_gated(self) -> bool:
        """Whether there are two first products."""
        return self.activation == "swiglu"

    def weights(self, seed: int = 0) -> Arrays:
        """Return stacks [experts, outputs, inputs] w1, w2, w3, biases b1, b2, b3 and the router's matrix."""
        random = np.random.default_rng(seed)
        first = self.inner * (2 if self.is_gated and self.fusion else 1)
        shapes = {"1": (first, self.width), "2": (self.width, self.inner)}
        if self.is_gated and not self.fusion:
            shapes["3"] = (self.inner, self.width)
        found: Arrays = {}
        for name, (outputs, inputs) in shapes.items():
            size = (self.count, outputs, inputs)
            found["w" + name] = (random.standard_normal(size) / np.sqrt(inputs)).astype(np.float32)
            found["b" + name] = (random.standard_normal(size[:2]) * self.has_bias).astype(np.float32)
        found["router"] = random.standard_normal((self.width, self.count)).astype(np.float32)
        return found


def outputs_of(experts: Experts, weights: Mapping[str, NDArray], x: NDArray) -> NDArray:
    """Return what a mixture makes of tokens [T, width], in float64."""
    given = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    logits = x.astype(np.float64) @ given["router"]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    made = np.zeros(x.shape)
    for token, row in enumerate(x.astype(np.float64)):
        chosen = np.argsort(-logits[token])[: experts.k]
        factors = probabilities[token, chosen]
        factors = factors / factors.sum() if experts.is_normalized else factors
        for factor, expert in zip(factors, chosen, strict=True):
            inner = _inner(experts, given, expert, row)
            made[token] += factor * (given["w2"][expert] @ inner + given["b2"][expert])
    return made


def _inner(experts: Experts, weights: Mapping[str, NDArray], expert: int, row: NDArray) -> NDArray:
    first = weights["w1"][expert] @ row + weights["b1"][expert]
    if not experts.is_gated:
        return ACTIVATIONS[experts.activation](first)
    if experts.fusion == 1:
        gate, value = first[::2], first[1::2]
    elif experts.fusion == 2:
        gate, value = np.split(first, 2)
    else:
        gate, value = first, weights["w3"][expert] @ row + weights["b3"][expert]
    gate, value = np.minimum(gate, LIMIT), np.clip(value, -LIMIT, LIMIT)
    return gate / (1 + np.exp(-ALPHA * gate)) * (value + BETA)


def moe(experts: Experts, weights: Mapping[str, NDArray]) -> onnx.ModelProto:
    """Return ``x`` [tokens, width] through a router and a MoE to ``y``."""
    inputs = ["x", "logits"]
    for name in ("1", "2", "3"):
        has_weight = "w" + name in weights
        inputs += ["w" + name if has_weight else "", "b" + name if has_weight and experts.has_bias else ""]
    while not inputs[-1]:
        inputs.pop()
    attrs: dict[str, object] = {"k": experts.k, "activation_type": experts.activation}
    attrs["normalize_routing_weights"] = int(experts.is_normalized)
    if experts.is_gated:
        attrs |= {"swiglu_fusion": experts.fusion, "swiglu_limit": LIMIT}
        attrs |= {"activation_alpha": ALPHA, "activation_beta": BETA}
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["logits"], "router"),
        helper.make_node("MoE", inputs, ["y"], "experts", domain="com.microsoft", **attrs),
    ]
    return model(experts, nodes, {name: weights[name] for name in {*inputs, "router"} & weights.keys()})


def model(experts: Experts, nodes: list[onnx.NodeProto], weights: Mapping[str, NDArray]) -> onnx.ModelProto:
    """Return a model of nodes that make ``y`` of ``x``, both [tokens, width]."""
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["tokens", experts.width])
        for name in ("x", "y")
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in sorted(weights.items())]
    graph = helper.make_graph(nodes, "experts", ends[:1], ends[1:], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: onnx.ModelProto, tokens: NDArray, *, optimize: bool = True) -> NDArray:
    """Return what ONNX Runtime makes of tokens."""
    session = open_session(model, library=False, optimize=optimize)
    return np.asarray(session.run(None, {"x": tokens})[0])


def sqnr(wanted: NDArray, made: NDArray) -> float:
    """Return how near an output is to a wanted one, in dB."""
    sums = Sums()
    sums.add(wanted, made)
    return sums.sqnr()


def decoded(model: onnx.ModelProto) -> Arrays:
    """Return the weights of a mixture as its QMoE stores them, with gate and value in turns."""
    node = next(node for node in model.graph.node if node.op_type == "QMoE")
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    arrays |= {n.output[0]: arrays[n.input[0]] for n in model.graph.node if n.op_type == "Cast"}
    bits = next(one.i for one in node.attribute if one.name == "expert_weight_bits")
    found = {"router": arrays["router"]}
    for number, place, zero_place in (("1", 2, 11), ("2", 5, 12)):
        numbers = _unpacked(arrays[node.input[place]], bits).astype(np.float64)
        scales = arrays[node.input[place + 1]].astype(np.float64)
        rows = numbers.shape[:2]
        scales = scales.reshape(*rows, -1)
        zeros: NDArray = np.full(scales.shape, 1 << (bits - 1))
        if len(node.input) > zero_place and node.input[zero_place]:
            zeros = _unpacked(arrays[node.input[zero_place]], bits)
            zeros = zeros[..., : rows[1] if zeros.ndim == len(rows) else scales.shape[2]]  # of rows or blocks
            zeros = zeros.reshape(scales.shape)
        block = numbers.shape[2] // scales.shape[2]
        found["w" + number] = (numbers - np.repeat(zeros, block, 2)) * np.repeat(scales, block, 2)
        has_bias = bool(node.input[place + 2])
        found["b" + number] = arrays[node.input[place + 2]] if has_bias else np.zeros(rows)
    return found


def _unpacked(stored: NDArray, bits: int) -> NDArray:
    parts = [(stored >> (bits * place)) & ((1 << bits) - 1) for place in range(8 // bits)]
    return np.stack(parts, axis=-1).reshape(*stored.shape[:-1], -1)
