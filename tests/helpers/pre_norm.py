"""Small transformers that normalize before their layers, with large channels in what they add up."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.benchmarks.transformer import Builder

NORMS = ("LayerNormalization", "RMSNormalization", "parts")
WIDTH, HEADS, WORDS, LENGTH = 32, 4, 100, 16


def pre_norm(
    norm: str = "LayerNormalization",
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = WIDTH,
    factor: float = 1.0,
    biases: bool = True,
    offset: float = 0.1,
) -> onnx.ModelProto:
    """Return one that makes logits ``[1, 16, words]`` of ``ids`` ``[1, 16]``.

    ``parts``: root mean squares, from Pow to Div, as exporters write them. Three channels of what is added up
    are ``factor`` times the others. ``biases``: of layers; ``offset``: how large those of norms are.
    """
    builder = Builder(np.random.default_rng(seed))
    model = _Model(builder, norm, width, biases, offset)
    for name, value in {"two": 2, "one": 1, "epsilon": 1e-5, "root": np.sqrt(width // HEADS)}.items():
        builder.constant(name, np.float32(value))
    builder.constant("split", [0, 0, HEADS, width // HEADS])
    builder.constant("merge", [0, 0, width])
    builder.constant("last", [-1])
    model.loud = np.where(np.isin(np.arange(width), [3, 7, width - 2]), factor, 1)
    table = builder.constant("words", model.random(WORDS, width) * model.loud)
    places = builder.constant("places", model.random(1, LENGTH, width) * model.loud)
    x = builder.node("Add", "sum", builder.node("Gather", "embedded", table, "ids"), places)
    for layer in range(layers):
        x = model.attention(f"layer{layer}", x)
        x = model.perceptron(f"layer{layer}", x)
    logits = model.linear("head", model.normalized("final", x), width, WORDS)
    builder.node("Identity", "logits", logits)
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, LENGTH])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, LENGTH, WORDS])]
    graph = helper.make_graph(builder.nodes, "pre_norm", inputs, outputs, builder.weights)
    opset = 23 if norm == "RMSNormalization" else 17
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


class _Model:
    loud: np.ndarray

    def __init__(self, builder: Builder, norm: str, width: int, biases: bool, offset: float) -> None:
        self._builder, self._norm, self._width = builder, norm, width
        self._biases, self._offset = biases, offset

    def random(self, *shape: int) -> np.ndarray:
        return self._builder.random.standard_normal(shape, np.float32)

    def linear(self, name: str, x: str, inputs: int, outputs: int, *, writes: bool = False) -> str:
        """Append a layer; one that writes what is added up makes large channels."""
        loud = self.loud if writes else np.ones(outputs)
        weight = self._builder.constant(f"{name}.weight", self.random(inputs, outputs) / inputs**0.5 * loud)
        x = self._builder.node("MatMul", f"{name}/MatMul", x, weight)
        if not self._biases:
            return x
        bias = self._builder.constant(f"{name}.bias", 0.1 * self.random(outputs) * loud)
        return self._builder.node("Add", f"{name}/Add", x, bias)

    def normalized(self, name: str, x: str) -> str:
        node = self._builder.node
        scale = self._builder.constant(f"{name}.scale", 1 + 0.2 * self.random(self._width))
        if self._norm == "parts":
            mean = node("ReduceMean", f"{name}/mean", node("Pow", f"{name}/Pow", x, "two"), axes=[-1])
            root = node("Sqrt", f"{name}/Sqrt", node("Add", f"{name}/Add", mean, "epsilon"))
            return node("Mul", f"{name}/Mul", scale, node("Div", f"{name}/Div", x, root))
        if self._norm == "RMSNormalization":
            return node(self._norm, f"{name}/norm", x, scale, axis=-1)
        added = self._builder.constant(f"{name}.added", self._offset * self.random(self._width))
        return node(self._norm, f"{name}/norm", x, scale, added, axis=-1)

    def attention(self, name: str, x: str) -> str:
        node, width, heads = self._builder.node, self._width, {}
        normal = self.normalized(f"{name}/first", x)
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            made = self.linear(f"{name}/{part}", normal, width, width)
            split = node("Reshape", f"{name}/{part}/split", made, "split")
            heads[part] = node("Transpose", f"{name}/{part}/heads", split, perm=order)
        scores = node(
            "Div", f"{name}/Div", node("MatMul", f"{name}/scores", heads["query"], heads["key"]), "root"
        )
        weights = node("Softmax", f"{name}/Softmax", scores, axis=-1)
        mixed = node("MatMul", f"{name}/mixed", weights, heads["value"])
        joined = node("Transpose", f"{name}/joined", mixed, perm=[0, 2, 1, 3])
        merged = node("Reshape", f"{name}/merged", joined, "merge")
        return node(
            "Add", f"{name}/sum1", x, self.linear(f"{name}/output", merged, width, width, writes=True)
        )

    def perceptron(self, name: str, x: str) -> str:
        node, width = self._builder.node, self._width
        normal = self.normalized(f"{name}/second", x)
        gate, up = (self.linear(f"{name}/{part}", normal, width, 2 * width) for part in ("gate", "up"))
        bent = node("Mul", f"{name}/bent", gate, node("Sigmoid", f"{name}/Sigmoid", gate))
        made = node("Mul", f"{name}/gated", bent, up)
        return node(
            "Add", f"{name}/sum2", self.linear(f"{name}/down", made, 2 * width, width, writes=True), x
        )
