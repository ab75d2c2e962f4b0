"""Shape inference of the operators: symbolic dimensions keep their names, nameless ones stay open."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ops
from tests.helpers import build

Shape = list[int | str | None]


def output_shape(shape: Shape, domain: str, pairs: int) -> list[int | str | None]:
    """Return the shape that ONNX Runtime infers behind a chain of quantize and dequantize nodes."""
    names = ["x", *(f"{kind}{i}" for i in range(pairs) for kind in "qd")]
    kinds = ("ExtendedQuantizeLinear", "ExtendedDequantizeLinear")
    nodes = [
        helper.make_node(kinds[i % 2], [source, "scale", "zero"], [target], domain=domain)
        for i, (source, target) in enumerate(itertools.pairwise(names))
    ]
    weights = {"scale": np.array(1, np.float32), "zero": np.array(0, ml_dtypes.bfloat16)}
    graph = helper.make_graph(
        nodes,
        "graph",
        [build.value("x", shape)],  # type: ignore[arg-type]
        [build.value(names[-1], None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    options = onnxruntime.SessionOptions()
    ops.register_custom_ops(options)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found: list[int | str | None] = session.get_outputs()[0].shape
    return found


@pytest.mark.parametrize("domain", [ops.DOMAIN, ops.AMD_DOMAIN])
@pytest.mark.parametrize("pairs", [1, 3])
@pytest.mark.parametrize(
    "shape", [[2, 3], ["rows", 3], ["rows", "columns"], ["a dimension with a name of its own", 3]]
)
def test_known_dimensions_and_names_pass_through(shape: Shape, pairs: int, domain: str) -> None:
    assert output_shape(shape, domain, pairs) == shape


@pytest.mark.parametrize("domain", [ops.DOMAIN, ops.AMD_DOMAIN])
@pytest.mark.parametrize("pairs", [1, 3])
def test_nameless_dimensions_stay_open(pairs: int, domain: str) -> None:
    first, second, third = output_shape([None, 3, None], domain, pairs)
    assert second == 3
    assert first != third
    assert not isinstance(first, int) and not isinstance(third, int)


def test_a_name_too_long_to_keep_stays_a_symbol() -> None:
    (found, size) = output_shape(["n" * 200, 3], ops.DOMAIN, 1)
    assert isinstance(found, str) and size == 3
