"""Experts kept on the grids that they have.

Oracle: the float weights, and for outputs NumPy in float64.

A product of 64 float32 numbers leaves more than 100 dB; kernels that round inputs to int8, those of 8 bits
and of 2 in blocks, 35.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import experts
from tests.helpers.experts import Arrays, Experts
from tests.helpers.known_grids import GRIDS
from transforms.graph.found_grids import FoundWeight
from transforms.model import graph_proto
from transforms.write_found_grids import write_found_grids

X = np.random.default_rng(7).standard_normal((48, 64)).astype(np.float32)
_BY_KERNELS = {
    "Q4_0": 4,
    "Q5_0": 8,
    "Q8_0": 8,
    "Q3_K": 4,
    "Q6_K": 8,
    "GPTQ 32": 4,
    "ternary": 2,
    "int8 per channel": 8,
}
"""Grids with integers around zero points, and the bits that they are stored in."""


def _weights(form: Experts, name: str) -> Arrays:
    """Return weights whose stacks have rows of 64 numbers on a grid."""
    weights = form.weights()
    for seed, key in enumerate(key for key in weights if key[0] == "w"):
        numbers = np.concatenate([GRIDS[name][0](2 * seed + i).reshape(-1) for i in range(2)])
        weights[key] = numbers[: weights[key].size].reshape(weights[key].shape) * 2
    return weights


@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("name", _BY_KERNELS)
def test_experts_are_read_as_they_were(name: str, is_gated: bool) -> None:
    form = Experts("swiglu" if is_gated else "silu", inner=64)
    weights = _weights(form, name)
    graph, found = graph_proto.import_model(experts.moe(form, weights)), list[FoundWeight]()
    assert write_found_grids(graph, found=found) == 1
    assert write_found_grids(graph) == 0
    written = graph_proto.export_model(graph)
    (node,) = [node for node in written.graph.node if node.op_type == "QMoE"]
    attrs = {one.name: one.i for one in node.attribute}
    assert attrs["expert_weight_bits"] == _BY_KERNELS[name]
    assert attrs["accuracy_level"] == (4 if _BY_KERNELS[name] == 8 and "channel" not in name else 1)
    stored = experts.decoded(written)
    first = np.stack([weights["w1"], weights["w3"]], 2).reshape(4, 128, 64) if is_gated else weights["w1"]
    np.testing.assert_array_equal(stored["w1"].astype(np.float32), first)
    np.testing.assert_array_equal(stored["w2"].astype(np.float32), weights["w2"])
    assert sum(one.is_whole for one in found) == 2
    least = 100 if _BY_KERNELS[name] == 4 else 35
    wanted = experts.outputs_of(form, weights, X)
    for optimize in (True, False):
        assert experts.sqnr(wanted, experts.run(written, X, optimize=optimize)) > least


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1", "E4M3 in blocks", "GPTQ in float16"])
def test_experts_that_qmoe_does_not_have_are_dequantized(name: str) -> None:
    form = Experts(inner=64)
    weights = _weights(form, name)
    graph = graph_proto.import_model(experts.moe(form, weights))
    assert write_found_grids(graph) == 2
    assert write_found_grids(graph) == 0
    written = graph_proto.export_model(graph)
    (node,) = [node for node in written.graph.node if node.op_type == "MoE"]
    for optimize in (True, False):
        assert (
            experts.sqnr(experts.outputs_of(form, weights, X), experts.run(written, X, optimize=optimize))
            > 100
        )
    del written.graph.output[:]
    written.graph.output.extend(onnx.helper.make_empty_tensor_value_info(node.input[i]) for i in (2, 4))
    session = onnxruntime.InferenceSession(written.SerializeToString())
    for read, key in zip(session.run(None, {"x": X}), ("w1", "w2"), strict=True):
        np.testing.assert_array_equal(read, weights[key])


def test_random_and_excluded_experts_stay() -> None:
    form = Experts(inner=64)
    graph = graph_proto.import_model(experts.moe(form, form.weights()))
    assert write_found_grids(graph) == 0
    graph = graph_proto.import_model(experts.moe(form, _weights(form, "Q4_0")))
    assert write_found_grids(graph, exclude="experts") == 0
    weights = _weights(form, "Q4_0")
    weights["w2"][3, 5, 7] += 0.01
    graph = graph_proto.import_model(experts.moe(form, weights))
    assert write_found_grids(graph) == 1
    assert "w2" in {one.name for one in graph_proto.export_model(graph).graph.initializer}
