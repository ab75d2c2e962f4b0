"""Microscaling in ONNX's own form. Oracle: the evaluator of the onnx package on the model before, and the
native kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import ops
from ops.formats import FORMATS
from transforms import model_io
from transforms.model import graph_proto
from transforms.model.read_model import ModelError
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset
from transforms.write_onnx_mx import write_onnx_mx

pytestmark = pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="opset 28 has all the types")
EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = [name for name, fmt in FORMATS.items() if fmt.op == "MXQuantizeDequantize"]
PRESETS = ["MXINT8", "MXFP8E4M3", "MXFP8E5M2", "MXFP6E3M2", "MXFP6E2M3", "MXFP4E2M1"]


def rounding(attributes: str, *, shape: str = "N, 40", kind: str = "float") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
        one ({kind}[{shape}] x) => ({kind}[{shape}] y) {{
            y = ai.onnx.contrib.MXQuantizeDequantize <{attributes}> (x)
        }}""")


def written(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model_io.load(model)
    assert write_onnx_mx(graph) and write_onnx_mx(graph) == 0
    result = graph_proto.export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    return result


def evaluated(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize("config", PRESETS)
def test_quantized_models(config: str, tmp_path: Path) -> None:
    """The same bits from one evaluator; every weight and activation has its type and takes its bits."""
    graph = model_io.load(EXAMPLES / "digits.onnx")
    quantize_graph(graph, preset(config))
    model_io.save(graph, tmp_path / "plain.onnx")
    images = np.load(EXAMPLES / "digits_test_images.npy")[:16]
    assert write_onnx_mx(graph, preset(config).named_formats) == 6
    model_io.save(graph, tmp_path / "native.onnx")
    models = [onnx.load(tmp_path / f"{name}.onnx") for name in ("plain", "native")]
    plain, native = (evaluated(model, {"images": images}) for model in models)
    assert native.tobytes() == plain.tobytes()
    scales = [t for t in models[1].graph.initializer if t.data_type == onnx.TensorProto.FLOAT8E8M0]
    assert len(scales) == 3 and {node.domain for node in models[1].graph.node} == {"", "onnx_narrow"}
    assert (tmp_path / "native.onnx").stat().st_size < 0.5 * (tmp_path / "plain.onnx").stat().st_size
    assert [one.version for one in models[1].opset_import if not one.domain] == [
        28 if "FP6" in config else 24
    ]


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_roundings_along_every_axis(name: str, axis: int) -> None:
    fmt = FORMATS[name]
    element = fmt.attributes["element_dtype"]
    model = written(
        rounding(
            f'element_dtype: string = "{element}", axis: int = {axis}, rounding_mode: int = 2',
            shape="A, B, C",
        )
    )
    rng = np.random.default_rng(0)
    for shape in ((3, 40, 5), (70, 1, 33)):
        x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(np.float32)
        expected = np.asarray(ops.quantize_dequantize(x, fmt, axis))
        assert np.array_equal(evaluated(model, {"x": x}), expected)


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("element", ["int8", "fp8_e4m3", "fp6_e2m3"])
def test_scale_rules(element: str, rule: str) -> None:
    given = f'element_dtype: string = "{element}", scale_rule: string = "{rule}", rounding_mode: int = 2'
    x = np.random.default_rng(1).standard_normal((64, 40)).astype(np.float32)
    before = rounding(given)
    options = onnxruntime.SessionOptions()
    ops.register_custom_ops(options)
    (expected,) = onnxruntime.InferenceSession(before.SerializeToString(), options).run(None, {"x": x})
    assert np.array_equal(evaluated(written(before), {"x": x}), expected)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            rounding("rounding_mode: int = 0"),
            "node 'y' rounds to mxint8 with rounding_mode 0: ONNX rounds half to even",
        ),
        (
            rounding("rounding_mode: int = 2", kind="float16"),
            "node 'y' rounds a tensor to mxint8 that is not float32",
        ),
    ],
)
def test_what_onnx_computes_otherwise_is_refused(model: onnx.ModelProto, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        write_onnx_mx(model_io.load(model))


@pytest.mark.parametrize("config", ["BFP16", "MX6", "BF16_BFP16"])
def test_other_block_formats_are_refused_by_name(config: str) -> None:
    graph = model_io.load(EXAMPLES / "digits.onnx")
    quantize_graph(graph, preset(config))
    name = "mx6" if config == "MX6" else "bfp16"
    with pytest.raises(ModelError, match=f"format '{name}' has no form in ONNX: only those of OCP"):
        write_onnx_mx(graph, preset(config).named_formats)


@pytest.mark.parametrize("special", [-2.0, -0.0, 2.0**-120, 2.0**-127, np.nan])
@pytest.mark.parametrize("name", ["mxint8", "mxfp8_e4m3"])
def test_weights_with_special_numbers(name: str, special: float) -> None:
    """What has no such form stays as it is: NaN, and numbers that need a scale below 2^-127."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    w[:32, 0] = 0
    w[3, 0] = special
    w = np.asarray(ops.quantize_dequantize(w, name, 0))
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> m (float[N, 64] x) => (float[N, 64] y)
        <float[64, 64] w> { y = MatMul (x, w) }""")
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    graph = model_io.load(model)
    expected = int(not np.isnan(special) and (special <= 0 or _has_scale(special, name)))
    assert write_onnx_mx(graph, [FORMATS[name]]) == expected
    if expected:
        found = evaluated(graph_proto.export_model(graph), {"x": np.eye(64, dtype=np.float32)})
        assert np.array_equal(found, w)


def _has_scale(number: float, name: str) -> bool:
    """Return whether a multiple of the least element at scale 2^-127 is the number."""
    least = 2.0**-127 * (1 if name == "mxint8" else 2.0**-9)
    return float(number / least).is_integer()


def test_bodies() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
        bodies (float[4, 40] x, bool yes) => (float[4, 40] y) {
            y = If (yes) <then_branch = one () => (float[4, 40] a) {
                a = ai.onnx.contrib.MXQuantizeDequantize <element_dtype: string = "fp4_e2m1"> (x)
            }, else_branch = two () => (float[4, 40] b) { b = Neg (x) }>
        }""")
    x = np.random.default_rng(0).standard_normal((4, 40)).astype(np.float32)
    found = evaluated(written(model), {"x": x, "yes": np.array(True)})
    assert np.array_equal(found, ops.quantize_dequantize(x, "mxfp4", 1))


def test_an_operator_that_means_something_else_later_is_refused() -> None:
    model = rounding('element_dtype: string = "fp6_e2m3"', shape="1, 1, 2, 2")
    node = onnx.helper.make_node("SpaceToDepth", ["y"], ["z"], name="deep", blocksize=2)
    model.graph.node.append(node)
    with pytest.raises(ModelError, match="raised to opset 28: SpaceToDepth 'deep': opset 28 defines it anew"):
        write_onnx_mx(model_io.load(model))


def test_a_model_without_microscaling_is_not_changed() -> None:
    graph = model_io.load(EXAMPLES / "digits.onnx")
    assert write_onnx_mx(graph) == 0 and graph.opset == 17
