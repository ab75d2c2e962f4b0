"""Functions attached to models: who runs what, with and without our library, and what readers make of them.

Oracles: the full checker, profiles of sessions, native kernels, the evaluator of the onnx package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ops
from ops.formats import FORMATS
from tests.helpers.operator_sessions import (
    BFP,
    DEQUANTIZE,
    DOMAINS,
    MX,
    QUANTIZE,
    assert_same,
    run_bits,
    run_twin,
)
from tests.helpers.twin_sessions import (
    linear_operator,
    one_operator,
    open_session,
    operators_run,
)
from transforms import model_io
from transforms.functions.attach_functions import TWINS, attach_functions, is_own, make_function

X = (np.random.default_rng(0).standard_normal((4, 40)) * 50).astype(np.float32)
LARGEST_FUNCTION = 12_000  # bytes: four of them are below the 50 KB that a file may grow by


def model_of(op: str, opset: int = 17, domain: str = ops.DOMAIN) -> onnx.ModelProto:
    """Return a model from x, X in float32, to y: a block operator, or an Extended operator on it."""
    if op in (BFP, MX):
        return one_operator(op, {}, shape=["a", "b"], opset=opset, domain=domain)
    scale, zero_point = np.float32([0.1]), np.int16([3])
    source = X if op == QUANTIZE else X.astype(np.int16)
    more = {"shape": ["a", "b"], "opset": opset, "domain": domain}
    return linear_operator(op, source, scale, zero_point, **more)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("opset", [13, 15, 18, 21])
@pytest.mark.parametrize("op", list(TWINS))
def test_one_file_runs_natively_with_the_library_and_as_a_function_without(
    op: str, opset: int, domain: str, tmp_path: Path
) -> None:
    """Profiles name the operators that ran: the native one alone, or standard operators alone."""
    model = model_of(op, opset, domain)
    onnx.checker.check_model(model, full_check=True)
    assert len(model.functions[0].SerializeToString()) < LARGEST_FUNCTION
    x = X.astype(np.int16) if op == DEQUANTIZE else X
    results = []
    for library in (True, False):
        session = open_session(model, library=library, profile=tmp_path / "profile")
        results.append(run_bits(session, x))
        run = operators_run(session)
        assert run == {op} if library else op not in run and run
    assert_same(results[1], results[0])


@pytest.mark.parametrize("op", list(TWINS))
def test_the_evaluator_of_onnx_runs_the_function(op: str) -> None:
    x, model = (X.astype(np.int16) if op == DEQUANTIZE else X), model_of(op)
    with np.errstate(all="ignore"):
        (found,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert_same(found, run_bits(open_session(model, library=True), x))


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.op in (BFP, MX)])
def test_the_evaluator_of_onnx_runs_every_block_format(name: str) -> None:
    fmt = FORMATS[name]
    with np.errstate(all="ignore"):
        (found,) = ReferenceEvaluator(one_operator(fmt.op, dict(fmt.attributes))).run(None, {"x": X})
    assert_same(found, run_twin(fmt.op, dict(fmt.attributes), X))


BODIES = """
    <ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
    bodies (float[4, 40] x, bool positive) => (float[4, 40] y, float[3, 4, 40] all, float[4, 40] rows) {
        y = If (positive) <
            then_branch = positive_branch () => (float[4, 40] a) {
                a = ai.onnx.contrib.BFPQuantizeDequantize <block_size: int = 16> (x)
            }, else_branch = negative_branch () => (float[4, 40] b) {
                n = Neg (x)
                b = ai.onnx.contrib.MXQuantizeDequantize <element_dtype: string = "fp4_e2m1"> (n)
            }>
        three = Constant <value = int64 {3}> ()
        yes = Constant <value = bool {1}> ()
        last, all = Loop (three, yes, x) <body = step (int64 i, bool go, float[4, 40] v)
            => (bool on, float[4, 40] w, float[4, 40] kept) {
                on = Identity (go)
                w = ai.onnx.contrib.BFPQuantizeDequantize <bit_width: int = 12> (v)
                kept = Add (w, x)
        }>
        rows = Scan <num_scan_inputs = 1, body = row (float[40] r) => (float[40] s) {
            s = ai.onnx.contrib.MXQuantizeDequantize <axis: int = 0> (r)
        }> (x)
    }"""


@pytest.mark.parametrize("positive", [True, False])
def test_bodies(positive: bool) -> None:
    """Operators in branches and loops, with other attributes in each."""
    model = onnx.parser.parse_model(BODIES)
    assert attach_functions(model) == 2
    onnx.checker.check_model(model, full_check=True)
    feed = {"x": X, "positive": np.array(positive)}
    native, plain = (open_session(model, library=library).run(None, feed) for library in (True, False))
    for found, expected in zip(plain, native, strict=True):
        assert_same(found, expected)


def test_one_function_serves_nodes_of_all_attributes_and_types() -> None:
    names = [name for name, fmt in FORMATS.items() if fmt.op in (BFP, MX)]
    nodes = [
        helper.make_node(FORMATS[n].op, ["x"], [n], domain=ops.DOMAIN, **FORMATS[n].attributes) for n in names
    ]
    nodes += [helper.make_node("Cast", ["x"], ["h"], to=onnx.TensorProto.FLOAT16)]
    nodes += [helper.make_node(BFP, ["h"], ["half"], domain=ops.DOMAIN)]
    types = [*((name, onnx.TensorProto.FLOAT) for name in names), ("half", onnx.TensorProto.FLOAT16)]
    outputs = [helper.make_tensor_value_info(name, kind, X.shape) for name, kind in types]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ops.DOMAIN, 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "many", inputs, outputs), opset_imports=imports, ir_version=8
    )
    assert attach_functions(model) == 2
    onnx.checker.check_model(model, full_check=True)
    native, plain = (open_session(model, library=lib).run(None, {"x": X}) for lib in (True, False))
    for found, expected in zip(plain, native, strict=True):
        assert_same(found, expected)


def test_stored_weights_are_folded_when_the_session_is_created(tmp_path: Path) -> None:
    model = one_operator(BFP, {}, shape=list(X.shape))
    model.graph.initializer.append(numpy_helper.from_array(X, "x"))
    del model.graph.input[:]
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    (found,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {})
    assert_same(found, run_twin(BFP, {}, X))
    assert not onnx.load(tmp_path / "optimized.onnx").graph.node


def test_saved_models_have_functions_and_readers_take_calls_for_the_operators(tmp_path: Path) -> None:
    model = model_of(BFP)
    del model.functions[:]
    graph = model_io.load(model)
    with_functions, without = tmp_path / "with.onnx", tmp_path / "without.onnx"
    model_io.save(graph, with_functions)
    model_io.save(graph, without, functions=False)
    assert [is_own(one) for one in onnx.load(with_functions).functions] == [True]
    assert not onnx.load(without).functions
    assert 0 < with_functions.stat().st_size - without.stat().st_size < LARGEST_FUNCTION
    again = model_io.load(with_functions)
    assert [node.op for node in again.nodes] == [BFP] and not again.functions
    model_io.save(again, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == with_functions.read_bytes()


def test_a_function_of_the_same_name_that_is_not_ours_stays() -> None:
    model = model_of(BFP)
    function = onnx.parser.parse_function(
        f'<domain: "{ops.DOMAIN}", opset_import: ["": 17]> {BFP} (X) => (Y) {{ Y = Neg (X) }}'
    )
    del model.functions[:]
    model.functions.append(function)
    assert attach_functions(model) == 0
    assert [node.op for node in model_io.load(model).nodes] == ["Neg"]


def test_no_function_where_it_could_not_be_right() -> None:
    """Before CastLike a function has one type; and the library refuses attributes that it does not know."""
    nodes = [
        helper.make_node(QUANTIZE, ["x", "scale", kind], [f"y_{kind}"], domain=ops.DOMAIN)
        for kind in ("int16", "int32")
    ]
    constants = [numpy_helper.from_array(np.zeros(1, kind), kind) for kind in ("int16", "int32")]
    constants.append(numpy_helper.from_array(np.ones(1, np.float32), "scale"))
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])]
    outputs = [
        helper.make_tensor_value_info("y_int16", onnx.TensorProto.INT16, [3]),
        helper.make_tensor_value_info("y_int32", onnx.TensorProto.INT32, [3]),
    ]
    graph = helper.make_graph(nodes, "two", inputs, outputs, constants)
    for opset, count in ((14, 0), (15, 1), (12, 0)):
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(ops.DOMAIN, 1)]
        assert attach_functions(helper.make_model(graph, opset_imports=imports)) == count
    model = model_of(BFP)
    model.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("bit_width", 9))
    kept = [a for a in model.graph.node[0].attribute[1:] if a.name != "bit_width"]
    del model.graph.node[0].attribute[1:]
    model.graph.node[0].attribute.extend(kept)
    assert attach_functions(model) == 0


@pytest.mark.parametrize("op", list(TWINS))
def test_functions_are_the_same_at_every_making(op: str) -> None:
    made: list[Any] = [make_function(op, ops.DOMAIN, 17) for _ in range(2)]
    assert made[0].SerializeToString() == made[1].SerializeToString()
