"""Generate chains of any number of small nodes: ``python -m tests.benchmarks.chain_models FORM NODES FILE``.

What is timed with them is the cost of nodes: the weights are a few numbers each, random and the same at every
run. The forms are

* ``shared``: Conv, Tanh and Mul, all Muls with one scalar, as exporters write it;
* ``own``: the same, each Mul with a scalar of its own;
* ``residual``: MatMul, Add of a bias, Tanh, and an Add of what went in.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.benchmarks.transformer import IR_VERSION, OPSET, Builder

CHANNELS, SIDE = 4, 4
FORMS = ("shared", "own", "residual")


def chain(form: str, nodes: int) -> onnx.ModelProto:
    """Return a chain of ``nodes`` nodes, or what is left of them after whole groups.

    It reads ``x``, float32 ``[1, 4, 4, 4]``, and makes a tensor of that shape.
    """
    builder = Builder(np.random.default_rng(0))
    builder.constant("half", np.float32(0.5))
    group, length = (_residual, 4) if form == "residual" else (_convolution, 3)
    end = "x"
    for number in range(nodes // length):
        end = group(builder, f"group{number}", end, form)
    shape = [1, CHANNELS, SIDE, SIDE]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", end)]
    graph = helper.make_graph(builder.nodes, "chain", ends[:1], ends[1:], builder.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _convolution(builder: Builder, name: str, x: str, form: str) -> str:
    weight = builder.normal(f"{name}.weight", CHANNELS, CHANNELS, 1, 1, deviation=1)
    made = builder.node("Conv", f"{name}/Conv", x, weight)
    factor = "half" if form == "shared" else builder.constant(f"{name}.half", [0.5])
    return builder.node("Mul", f"{name}/Mul", builder.node("Tanh", f"{name}/Tanh", made), factor)


def _residual(builder: Builder, name: str, x: str, form: str) -> str:
    made = builder.node("Tanh", f"{name}/Tanh", builder.linear(name, x, SIDE, SIDE))
    return builder.node("Add", f"{name}/skip", made, x)


def main() -> None:
    """Write the chain named."""
    parser = argparse.ArgumentParser(description="Write a chain of small nodes with random weights.")
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("nodes", type=int)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    onnx.save(chain(options.form, options.nodes), options.file)


if __name__ == "__main__":
    main()
