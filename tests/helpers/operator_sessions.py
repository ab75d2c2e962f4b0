"""Sessions on one operator of ours, and the NumPy twin called with the same attributes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import ops
from ops import reference

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
BFP, MX = "BFPQuantizeDequantize", "MXQuantizeDequantize"
QUANTIZE, DEQUANTIZE = "ExtendedQuantizeLinear", "ExtendedDequantizeLinear"
DOMAINS = (ops.DOMAIN, ops.AMD_DOMAIN)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def onnx_type(dtype: np.dtype[Any]) -> int:
    """Return the ONNX element type of a NumPy type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def make_session(
    nodes: list[Any],
    input_type: int,
    output_type: int,
    *,
    shape: Any = None,
    constants: dict[str, NDArray[Any]] | None = None,
    domain: str = ops.DOMAIN,
    threads: int = 1,
    flush: bool = False,
) -> onnxruntime.InferenceSession:
    """Return a session on nodes from x to y, with our operators registered.

    ``flush`` treats subnormal numbers as zero, in its threads and, if it is the first of the process, in this
    one.
    """
    inputs = [helper.make_tensor_value_info("x", input_type, shape)]
    outputs = [helper.make_tensor_value_info("y", output_type, None)]
    initializers = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.set_denormal_as_zero", str(int(flush)))
    ops.register_custom_ops(options)
    return onnxruntime.InferenceSession(model, options)


def block_session(
    op: str, attributes: dict[str, Any], *, dtype: Any = np.float32, domain: str = ops.DOMAIN, **more: Any
) -> onnxruntime.InferenceSession:
    """Return a session on one block operator."""
    node = helper.make_node(op, ["x"], ["y"], name="node1", domain=domain, **attributes)
    return make_session([node], onnx_type(dtype), onnx_type(dtype), domain=domain, **more)


def run_bits(session: onnxruntime.InferenceSession, x: NDArray[Any]) -> NDArray[Any]:
    """Run a session from x to y; bfloat16 goes through OrtValue, because NumPy does not have it."""
    narrow = session.get_outputs()[0].type == "tensor(bfloat16)"
    if x.dtype != BFLOAT16 and not narrow:
        return session.run(None, {"x": x})[0]
    bits = x.view(np.uint16) if x.dtype == BFLOAT16 else x
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_type(x.dtype))
    (result,) = session.run_with_ort_values(None, {"x": value})
    if not narrow:
        return result.numpy()
    size = int(np.prod(result.shape()))
    buffer = (ctypes.c_uint16 * size).from_address(result.data_ptr()) if size else b""
    return np.frombuffer(buffer, np.uint16).copy().reshape(result.shape()).view(BFLOAT16)


def run_twin(op: str, attributes: dict[str, Any], x: NDArray[Any]) -> NDArray[Any]:
    """Return what an operator with these attributes must give, from ops.reference."""
    if x.size == 0:
        return x
    options = dict(attributes)
    axis = options.pop("axis", 1)
    axis = axis if x.ndim > 1 else 0
    with np.errstate(invalid="ignore", over="ignore"):
        wide = x.astype(np.float32)
        if options.pop("convert_to_bfloat_before_bfp", 0):
            wide = reference.bfloat16_bits(wide).view(BFLOAT16).astype(np.float32)
        if x.size == 1:
            return wide.astype(x.dtype)
        return _TWINS[_twin_name(op, options)](wide, axis, options).astype(x.dtype)


def _twin_name(op: str, options: dict[str, Any]) -> str:
    return "mx" if op == MX else options.pop("bfp_method", "to_bfp").removesuffix("_shared")


def _run_bfp(x: NDArray[Any], axis: int, options: dict[str, Any]) -> NDArray[Any]:
    compiler = bool(options.pop("use_compiler_version_cpu_kernel", 0))
    known = {key: value for key, value in options.items() if not key.startswith("sub_block")}
    return reference.bfp(x, axis, compiler=compiler, **known)


def _run_prime(x: NDArray[Any], axis: int, options: dict[str, Any]) -> NDArray[Any]:
    shift = options.pop("sub_block_shift_bits", 1)
    return reference.microexponent(x, axis, shift_bits=shift, **{"block_size": 8, **options})


def _run_mx(x: NDArray[Any], axis: int, options: dict[str, Any]) -> NDArray[Any]:
    if options.get("rounding_mode") == 7:
        options["rounding_mode"] = 0
    return reference.microscaling(x, axis, **options)


_TWINS = {"to_bfp": _run_bfp, "to_bfp_prime": _run_prime, "mx": _run_mx}


def assert_same(y: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal bit for bit, the sign of zero included; any NaN equals any NaN."""
    assert y.dtype == expected.dtype and y.shape == expected.shape
    unsigned = np.dtype(f"u{y.dtype.itemsize}")
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(y), nan)
    different = (y.view(unsigned) != expected.view(unsigned)) & ~nan
    assert not different.any(), (
        f"{different.sum()} of {y.size} differ: {y[different][:5]}, {expected[different][:5]}"
    )
