"""Oracle: ONNX Runtime on the model before, whose operators the Casts take the place of."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

import ops
from tests.helpers import conversion, corpus
from tests.helpers.spread import spread
from transforms import model_io
from transforms.graph import walk
from transforms.insert_bf16_qdq import insert_bf16_qdq
from transforms.insert_cast import insert_cast
from transforms.model import graph_proto
from transforms.qdq_to_cast import qdq_to_cast


def pair(element: str = "bfloat16", *, scale: float = 1, zero: int = 0, opset: int = 18) -> onnx.ModelProto:
    """Return ``x`` to ``y`` through a quantize and a dequantize node."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}, "{ops.DOMAIN}": 1]>
        g (float[N] x) => (float[N] y)
        <float scale = {{{scale}}}, {element} zero = {{{zero}}}, {element}[N] q> {{
            q = {ops.DOMAIN}.ExtendedQuantizeLinear(x, scale, zero)
            y = {ops.DOMAIN}.ExtendedDequantizeLinear(q, scale, zero) }}""")


def counted(graph: gs.Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in walk.nodes(graph):
        found[node.op] = found.get(node.op, 0) + 1
    return found


def every_pattern() -> np.ndarray:
    """Return every bfloat16 number, with all the lower halves that decide how a float32 is rounded to it."""
    high = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high[:, None] | low).reshape(-1).view(np.float32)


def test_every_number_stays_the_same() -> None:
    model = pair()
    graph = model_io.load(model)
    assert qdq_to_cast(graph) == 2
    assert counted(graph) == {"Cast": 2}
    x = every_pattern()
    before, after = conversion.run(model, {"x": x}), conversion.run(graph_proto.export_model(graph), {"x": x})
    assert conversion.same(before, after)
    assert np.array_equal(np.signbit(before["y"]), np.signbit(after["y"]))
    finite = np.isfinite(x)
    assert np.array_equal(after["y"][finite], x[finite].astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(("name", "domain"), spread(corpus.MODELS, (ops.DOMAIN, ops.AMD_DOMAIN), of=2))
def test_models_become_what_casts_alone_make_of_them(name: str, domain: str) -> None:
    model = corpus.build(name)
    with_pairs, with_casts = model_io.load(model), model_io.load(model)
    count = insert_bf16_qdq(with_pairs, domain=domain)
    insert_cast(with_casts)
    before = graph_proto.export_model(with_pairs)
    changed = qdq_to_cast(with_pairs)
    assert changed == counted(graph_proto.import_model(before)).get("ExtendedQuantizeLinear", 0) * 2
    assert changed >= count
    assert qdq_to_cast(with_pairs) == 0
    assert counted(with_pairs) == counted(with_casts)
    after = graph_proto.export_model(with_pairs)
    onnx.checker.check_model(after, full_check=True)
    assert [opset.domain for opset in after.opset_import] == [""]
    assert {tensor.name for tensor in after.graph.initializer}.isdisjoint({"bf16_scale", "bf16_zero_point"})
    feeds = corpus.feeds(model)
    assert conversion.same(conversion.run(before, feeds), conversion.run(after, feeds))


@pytest.mark.parametrize(
    "model",
    (pair("float16"), pair("int8"), pair(scale=0.5), pair(zero=1), pair("uint16")),
    ids=("float16", "int8", "scale", "zero point", "uint16"),
)
def test_other_types_scales_and_zero_points_stay(model: onnx.ModelProto) -> None:
    graph = model_io.load(model)
    assert qdq_to_cast(graph) == 0
    assert counted(graph) == {"ExtendedQuantizeLinear": 1, "ExtendedDequantizeLinear": 1}
    assert [opset.domain for opset in graph.import_domains] == ["", ops.DOMAIN]


def test_float16_would_not_be_the_same_as_a_cast() -> None:
    """Why float16 stays: the operator saturates where a Cast overflows."""
    x = np.array([1e6], np.float32)
    assert conversion.run(pair("float16"), {"x": x})["y"] == 65504
    with np.errstate(over="ignore"):
        assert np.isinf(x.astype(np.float16))


def test_a_computed_scale_stays() -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18, "{ops.DOMAIN}": 1]>
        g (float[N] x, float scale) => (float[N] y) <bfloat16 zero = {{0}}, bfloat16[N] q> {{
            q = {ops.DOMAIN}.ExtendedQuantizeLinear(x, scale, zero)
            y = {ops.DOMAIN}.ExtendedDequantizeLinear(q, scale, zero) }}"""
    assert qdq_to_cast(model_io.load(onnx.parser.parse_model(text))) == 0


def test_a_domain_that_is_still_needed_stays_imported() -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18, "{ops.DOMAIN}": 1]>
        g (float[N] x) => (float[N] z)
        <float scale = {{1}}, bfloat16 zero = {{0}}, bfloat16[N] q, float[N] y> {{
            q = {ops.DOMAIN}.ExtendedQuantizeLinear(x, scale, zero)
            y = {ops.DOMAIN}.ExtendedDequantizeLinear(q, scale, zero)
            z = {ops.DOMAIN}.MXQuantizeDequantize(y) }}"""
    graph = model_io.load(onnx.parser.parse_model(text))
    assert qdq_to_cast(graph) == 2
    assert [opset.domain for opset in graph_proto.export_model(graph).opset_import] == ["", ops.DOMAIN]


def test_no_cast_to_bfloat16_before_opset_13() -> None:
    graph = model_io.load(pair(opset=12))
    with pytest.raises(ValueError, match=r"^Cast makes bfloat16 from opset 13 on, the model has 12$"):
        qdq_to_cast(graph)
    assert counted(graph) == {"ExtendedQuantizeLinear": 1, "ExtendedDequantizeLinear": 1}
    assert qdq_to_cast(model_io.load(pair("int8", opset=12))) == 0
