"""Registration with ONNX Runtime: both domains, any order, beside Python operators; what ops imports."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import onnxruntime_extensions
import pytest
from onnx import TensorProto, helper

import ops
from tests.helpers.operator_sessions import (
    BFP,
    DEQUANTIZE,
    DOMAINS,
    MX,
    QUANTIZE,
    block_session,
    make_session,
)


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def one_node_model(domain: str) -> bytes:
    node = helper.make_node(BFP, ["x"], ["y"], domain=domain)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy"]
    graph = helper.make_graph([node], "test", values[:1], values[1:])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def test_each_library_serves_its_domain() -> None:
    for domain in DOMAINS:
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(ops.get_library_path(domain=domain))
        session = onnxruntime.InferenceSession(one_node_model(domain), options)
        assert session.run(None, {"x": np.ones((2, 8), np.float32)})[0].shape == (2, 8)


@pytest.mark.parametrize("first", [0, 1])
def test_both_libraries_in_either_order(first: int) -> None:
    options = onnxruntime.SessionOptions()
    for domain in (DOMAINS[first], DOMAINS[1 - first]):
        options.register_custom_ops_library(ops.get_library_path(domain=domain))
    for domain in DOMAINS:
        assert onnxruntime.InferenceSession(one_node_model(domain), options).get_inputs()


def test_the_extensions_library_is_the_one_of_its_package() -> None:
    assert ops.get_library_path() == onnxruntime_extensions.get_library_path()


@pytest.mark.parametrize("device", ["CPU", "cpu", "Cpu", "CUDA", "ROCM", "rocm"])
def test_device_names(device: str) -> None:
    assert ops.get_library_path(device) == ops.get_library_path()


def test_unknown_device_and_domain() -> None:
    with pytest.raises(ValueError, match="device 'npu' is not supported, legal are CPU"):
        ops.get_library_path("npu")
    with pytest.raises(ValueError, match="domain 'x' has no operators"):
        ops.get_library_path(domain="x")


def test_importing_ops_imports_neither_onnx_nor_onnxruntime() -> None:
    heavy = ("onnx", "onnxruntime", "onnxruntime_extensions")
    code = f"import sys, ops; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_own_library_works_where_ops_was_never_imported() -> None:
    """ONNX Runtime loads the shared object by path; Python's initialiser of the module never runs."""
    model = one_node_model(ops.AMD_DOMAIN)
    code = f"""
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library({ops.get_library_path(domain=ops.AMD_DOMAIN)!r})
session = onnxruntime.InferenceSession({model!r}, options)
print(session.run(None, {{"x": numpy.full((1, 8), 1.2345, numpy.float32)}})[0][0, 0], "ops" in sys.modules)
"""
    assert run_python(code) == "1.234375 False"


@pytest.mark.parametrize("order", ["import ops\n{python_op}", "{python_op}\nimport ops"])
def test_a_python_operator_of_the_same_name_wins_and_nothing_hangs(order: str) -> None:
    python_op = f"""
import onnxruntime_extensions as extensions
@extensions.onnx_op(op_type="{BFP}", inputs=[extensions.PyCustomOpDef.dt_float])
def f(x): return x * 3
"""
    code = f"""
{order.format(python_op=python_op)}
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(ops.get_library_path())
session = onnxruntime.InferenceSession({one_node_model(ops.DOMAIN)!r}, options)
print(session.run(None, {{"x": numpy.ones((1, 8), numpy.float32)}})[0][0, 0])
"""
    assert run_python(code) == "3.0"


def test_shape_inference() -> None:
    """The output has the input's shape; a nameless dynamic dimension gets a name."""
    for op in (BFP, MX):
        session = block_session(op, {}, shape=[3, "n", None])
        three, n, fresh = session.get_outputs()[0].shape
        assert (three, n) == (3, "n")
        assert isinstance(fresh, str) and fresh != "n"


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int8])
def test_block_operators_refuse_other_types_at_load(dtype: type) -> None:
    with pytest.raises(Exception, match="Type Error"):
        block_session(BFP, {}, dtype=dtype)


def test_quantized_type_follows_the_zero_point() -> None:
    constants = {"scale": np.ones((), np.float32), "zero": np.zeros((), np.uint16)}
    node = helper.make_node(QUANTIZE, ["x", "scale", "zero"], ["y"], domain=ops.DOMAIN)
    session = make_session([node], 1, TensorProto.UINT16, constants=constants, shape=[2, 3])
    output = session.get_outputs()[0]
    assert (output.type, output.shape) == ("tensor(uint16)", [2, 3])
    assert DEQUANTIZE != QUANTIZE
