"""Generate a transformer encoder as exporters write it: ``python -m tests.benchmarks.transformer FILE``.

Opset 13 has neither LayerNormalization nor Gelu, so both are decomposed; queries, keys and values are three
products of one tensor; shapes are computed from the input. The default is 50 million float32 parameters in
200 MB, of which a quarter is the embedding table. The weights are random, the same at every run.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 13, 8
MASKED = -10000.0  # what exporters add to the scores of padding


@dataclass(frozen=True)
class Size:
    """How large the encoder is; every head has ``width / heads`` channels."""

    layers: int = 12
    width: int = 512
    heads: int = 8
    vocabulary: int = 24000
    positions: int = 512


SMALL = Size(layers=2, width=32, heads=4, vocabulary=100, positions=16)


@dataclass
class Builder:
    """Collects nodes and weights; the output of a node is called like the node."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, op_type: str, name: str, *inputs: str, **attributes: int | list[int]) -> str:
        """Append a node and return its output."""
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))  # type: ignore[arg-type]
        return name

    def constant(self, name: str, value: ArrayLike) -> str:
        """Append an initializer and return its name."""
        array = np.asarray(value)
        kept = array if array.dtype == np.int64 else array.astype(np.float32)
        self.weights.append(numpy_helper.from_array(kept, name))
        return name

    def normal(self, name: str, *shape: int, deviation: float = 0.02) -> str:
        """Append an initializer of normally distributed values around zero."""
        return self.constant(name, deviation * self.random.standard_normal(shape, np.float32))

    def linear(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """Append a MatMul with a weight ``[inputs, outputs]``, then the Add of its bias."""
        product = self.node("MatMul", f"{name}/MatMul", x, self.normal(f"{name}.weight", inputs, outputs))
        return self.node("Add", f"{name}/Add", self.normal(f"{name}.bias", outputs), product)

    def normalize(self, name: str, x: str, width: int) -> str:
        """Append a layer normalization over the last axis, in nine nodes."""
        mean = self.node("ReduceMean", f"{name}/mean", x, axes=[-1], keepdims=1)
        centred = self.node("Sub", f"{name}/Sub", x, mean)
        square = self.node("Pow", f"{name}/Pow", centred, "two")
        variance = self.node("ReduceMean", f"{name}/variance", square, axes=[-1], keepdims=1)
        shifted = self.node("Add", f"{name}/epsilon", variance, "epsilon")
        deviation = self.node("Sqrt", f"{name}/Sqrt", shifted)
        unit = self.node("Div", f"{name}/Div", centred, deviation)
        scaled = self.node("Mul", f"{name}/Mul", unit, self.constant(f"{name}.weight", np.ones(width)))
        return self.node("Add", f"{name}/Add", scaled, self.normal(f"{name}.bias", width))

    def gelu(self, name: str, x: str) -> str:
        """Append x (1 + erf(x / sqrt 2)) / 2, in five nodes."""
        ratio = self.node("Div", f"{name}/Div", x, "sqrt_two")
        shifted = self.node("Add", f"{name}/Add", self.node("Erf", f"{name}/Erf", ratio), "one")
        return self.node("Mul", f"{name}/Mul_1", self.node("Mul", f"{name}/Mul", x, shifted), "half")


def transformer(size: Size = SMALL, seed: int = 0, *, builder: Builder | None = None) -> onnx.ModelProto:
    """Return the encoder: ``input_ids`` and ``attention_mask`` ``[batch, sequence]`` int64 in, states out.

    ``builder`` makes its weights, of the seed if there is none.
    """
    builder = builder or Builder(np.random.default_rng(seed))
    scalars = {"two": 2, "half": 0.5, "one": 1, "sqrt_two": np.sqrt(2), "epsilon": 1e-12, "masked": MASKED}
    for name, value in scalars.items():
        builder.constant(name, np.float32(value))
    builder.constant("root_of_channels", np.float32(np.sqrt(size.width // size.heads)))
    builder.constant("split_heads", [0, 0, size.heads, size.width // size.heads])
    builder.constant("merge_heads", [0, 0, size.width])
    mask = _mask(builder)
    states = _embed(builder, size)
    for layer in range(size.layers):
        states = _layer(builder, f"encoder/layer.{layer}", states, mask, size)
    builder.node("Identity", "last_hidden_state", states)
    return _model(builder, size)


def _mask(builder: Builder) -> str:
    """Return what is added to the scores: 0 where ``attention_mask`` is 1, else a large negative number."""
    axes = builder.constant("mask/axes", [1, 2])
    kept = builder.node("Cast", "mask/Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = builder.node("Sub", "mask/Sub", "one", builder.node("Unsqueeze", "mask/Unsqueeze", kept, axes))
    return builder.node("Mul", "mask/Mul", hidden, "masked")


def _embed(builder: Builder, size: Size) -> str:
    zero, one = builder.constant("embed/zero", [0]), builder.constant("embed/one", [1])
    two = builder.constant("embed/two", [2])
    table = builder.normal("embed.words", size.vocabulary, size.width)
    words = builder.node("Gather", "embed/Gather", table, "input_ids")
    shape = builder.node("Shape", "embed/Shape", "input_ids")
    length = builder.node("Slice", "embed/length", shape, one, two)
    places = builder.normal("embed.positions", size.positions, size.width)
    used = builder.node("Slice", "embed/Slice", places, zero, length, zero)
    return builder.normalize("embed/norm", builder.node("Add", "embed/Add", words, used), size.width)


def _layer(builder: Builder, name: str, x: str, mask: str, size: Size) -> str:
    mixed = builder.linear(f"{name}/output", _attend(builder, name, x, mask, size), size.width, size.width)
    x = builder.normalize(f"{name}/norm1", builder.node("Add", f"{name}/skip1", mixed, x), size.width)
    inner = builder.gelu(f"{name}/gelu", builder.linear(f"{name}/up", x, size.width, 4 * size.width))
    outer = builder.linear(f"{name}/down", inner, 4 * size.width, size.width)
    return builder.normalize(f"{name}/norm2", builder.node("Add", f"{name}/skip2", outer, x), size.width)


def _attend(builder: Builder, name: str, x: str, mask: str, size: Size) -> str:
    def head(role: str, perm: list[int]) -> str:
        projected = builder.linear(f"{name}/{role}", x, size.width, size.width)
        split = builder.node("Reshape", f"{name}/{role}/Reshape", projected, "split_heads")
        return builder.node("Transpose", f"{name}/{role}/Transpose", split, perm=perm)

    query, key, value = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1]), head("value", [0, 2, 1, 3])
    products = builder.node("MatMul", f"{name}/scores", query, key)
    scaled = builder.node("Div", f"{name}/Div", products, "root_of_channels")
    weights = builder.node(
        "Softmax", f"{name}/Softmax", builder.node("Add", f"{name}/mask", scaled, mask), axis=-1
    )
    context = builder.node("MatMul", f"{name}/context", weights, value)
    merged = builder.node("Transpose", f"{name}/Transpose", context, perm=[0, 2, 1, 3])
    return builder.node("Reshape", f"{name}/Reshape", merged, "merge_heads")


def _model(builder: Builder, size: Size) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", size.width]
    )
    graph = helper.make_graph(builder.nodes, "encoder", inputs, [output], builder.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def main() -> None:
    """Write the default encoder to the file named."""
    parser = argparse.ArgumentParser(description="Write a 200 MB transformer encoder with random weights.")
    parser.add_argument("file", type=Path)
    onnx.save(transformer(Size()), parser.parse_args().file)


if __name__ == "__main__":
    main()
