"""Large packed weights in turns. Oracle: the same weights without turns, and what ONNX Runtime logs."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import ops
from tests.helpers.packed_models import run
from transforms import features, model_io
from transforms.compare.inspect_model import inspect_model
from transforms.features.packed import turns
from transforms.features.packed.packed_calls import attach_packed
from transforms.functions import DOMAIN
from transforms.graph import walk
from transforms.model import graph_proto
from transforms.pack_weights import pack_weights

COUNT = 12


@pytest.fixture(params=[("mx6", 17), ("bfp16", 21)], ids=str)
def plain(request: pytest.FixtureRequest) -> onnx.ModelProto:
    """Return a model that gives out the product of 12 weights of a block format."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(COUNT)]
    names = [f"w{number}" for number in range(COUNT)]
    steps = [f"p{k} = MatMul ({f'p{k - 1}' if k else 'w0'}, w{k})" for k in range(COUNT)]
    name, opset = request.param
    head = f'<ir_version: 10, opset_import: ["": {opset}]> products () => (float[64, 64] p{COUNT - 1})'
    model = onnx.parser.parse_model(f"{head} {{ {' '.join(steps)} }}")
    arrays = [np.asarray(ops.quantize_dequantize(one, name, 0)) for one in weights]
    model.graph.initializer.extend(map(onnx.numpy_helper.from_array, arrays, names))
    return model


def packed(model: onnx.ModelProto, patch: pytest.MonkeyPatch, large: int = 1) -> onnx.ModelProto:
    patch.setattr(turns, "LARGE", large)
    graph = model_io.load(model)
    assert pack_weights(graph) == COUNT
    return graph_proto.export_model(graph)


def test_outputs_in_every_kind_of_session(plain: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(plain, monkeypatch)
    assert {"Turns"} <= {node.op_type for node in model.graph.node}
    onnx.checker.check_model(model, full_check=True)
    for optimize in (True, False):
        expected = run(plain, optimize=optimize)
        for library in (True, False):
            assert run(model, optimize=optimize, library=library).tobytes() == expected.tobytes()
    if plain.opset_import[0].version >= 19:  # the evaluator has no older DequantizeLinear
        evaluated, expected = (ReferenceEvaluator(one).run(None, {})[0] for one in (model, plain))
        assert evaluated.tobytes() == expected.tobytes()


def test_few_weights_are_folded_in_one_pass(
    plain: onnx.ModelProto,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each in the pass of its turn: the log of the runtime tells when their codes go."""
    model = packed(plain, monkeypatch)
    waits = [node for node in model.graph.node if node.op_type.startswith("Wait_")]
    planned = {node.output[0]: int(node.input[-1].removeprefix("turn")) for node in waits}
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 0, 1
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    passes: dict[str, int] = {}
    step = 0
    for line in capfd.readouterr().err.splitlines():
        if found := re.search(r"transformer ConstantFolding on step (\d+)", line):
            step = int(found[1])
        elif found := re.search(r"Removing initializer '(\w+_in_turn)'", line):
            passes[found[1]] = step
    if not step:
        pytest.skip("this version of ONNX Runtime does not log its passes")
    assert {name: passes[name] for name in planned} == {name: turn + 1 for name, turn in planned.items()}
    assert len(set(planned.values())) >= 4


def test_nothing_is_left_to_run(
    plain: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = packed(plain, monkeypatch)
    model.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [64, 64]))
    next(node for node in model.graph.node if node.op_type == "MatMul").input[0] = "x"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node} == {"MatMul"}


def test_readers_see_the_weights(
    plain: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, without = packed(plain, monkeypatch), packed(plain, monkeypatch, large=1 << 40)
    attach_packed(model)  # again
    assert sum(node.op_type == "Turns" for node in model.graph.node) == 1
    assert sum(node.domain == DOMAIN for node in without.graph.node) == COUNT
    assert inspect_model(model).weights.items() >= inspect_model(without).weights.items()
    graph = model_io.load(model)
    assert {node.op for node in graph.nodes} == {"MatMul"} and not graph.functions
    found = sorted(tensor.values.tobytes() for tensor in walk.constants(graph))
    assert found == sorted(tensor.raw_data for tensor in plain.graph.initializer)


def test_functions_that_were_changed_stay(plain: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(plain, monkeypatch)
    for function in model.functions:
        if function.name.startswith("Wait_"):
            function.doc_string = "changed"
    assert not turns.stored_names(model)
    expected = run(model)
    again = graph_proto.export_model(model_io.load(model))
    assert run(again).tobytes() == expected.tobytes()


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60))
def test_turns_need_the_same_memory(sizes: list[int]) -> None:
    """Those before the last take at most one weight more than another; the larger ones come first."""
    found = turns.turns_of(sizes)
    order = sorted(zip(found, sizes, strict=True), key=lambda pair: (pair[0], -pair[1]))
    assert [size for _, size in order] == sorted(sizes, reverse=True)
    assert sorted(set(found)) == list(range(max(found) + 1)) and max(found) <= 6
    decoded, peaks = 0, []
    for _, pairs in groupby(order, lambda pair: pair[0]):
        now = sum(size for _, size in pairs)
        peaks.append(4 * decoded + 23 * now)
        decoded += now
    even = 4 * sum(sizes) / (1 - (19 / 23) ** 7)
    assert all(peak <= max(even, 23 * max(sizes)) * 1.0001 + 4 * sum(sizes) for peak in peaks[:-1])


def test_the_domain_of_functions_opens_the_feature() -> None:
    assert features.FEATURES["packed"] == (DOMAIN,)
    (coded,) = features.coded_in(["", DOMAIN])
    assert coded.attach is attach_packed and not features.coded_in(["", "ai.onnx.contrib"])
