"""Oracle: HardSwish's formula x * max(0, min(1, x / 6 + 1 / 2)) in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import conversion, corpus
from transforms import model_io
from transforms.conversion.standard_form import standardize
from transforms.fuse_hardswish import fuse_hardswish
from transforms.graph import walk
from transforms.graph.selection import select
from transforms.model import graph_proto

ALPHA = "alpha = 0.1666666716337204"
FORM = f"h = HardSigmoid <{ALPHA}, beta = 0.5> (x)"
X = np.linspace(-5, 5, 101, dtype=np.float32)


def fused(
    body: str, *, opset: int = 17, outputs: str = "float[N] y"
) -> tuple[int, list[str], onnx.ModelProto]:
    graph = model_io.load(corpus.parse(f"(float[N] x) => ({outputs}) {{ {body} }}", opset=opset))
    count = fuse_hardswish(graph)
    assert fuse_hardswish(graph) == 0
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    return count, [node.op for node in walk.nodes(graph)], model


@pytest.mark.parametrize("product", ("Mul(x, h)", "Mul(h, x)"))
def test_product_with_its_own_sigmoid(product: str) -> None:
    """Bound: each form rounds at most four times in x / 6 + 1 / 2 and the product."""
    count, operators, model = fused(f"{FORM} y = {product}")
    assert (count, operators) == (1, ["HardSwish"])
    exact = X.astype(np.float64) * np.clip(X.astype(np.float64) / 6 + 0.5, 0, 1)
    error = np.abs(conversion.run(model, {"x": X})["y"] - exact)
    assert (error <= 6 * 2.0**-24 * np.maximum(np.abs(X), 1)).all()


@pytest.mark.parametrize(
    ("body", "opset", "outputs"),
    (
        (f"{FORM} y = Mul(x, h)", 13, "float[N] y"),
        ("h = HardSigmoid(x) y = Mul(x, h)", 17, "float[N] y"),
        (f"h = HardSigmoid <{ALPHA}, beta = 0.6> (x) y = Mul(x, h)", 17, "float[N] y"),
        (f"{FORM} z = Neg(x) y = Mul(z, h)", 17, "float[N] y"),
        (f"{FORM} y = Add(x, h)", 17, "float[N] y"),
        (f"{FORM} y = Mul(h, h)", 17, "float[N] y"),
    ),
)
def test_does_nothing(body: str, opset: int, outputs: str) -> None:
    count, operators, _ = fused(body, opset=opset, outputs=outputs)
    assert count == 0
    assert "HardSigmoid" in operators


def test_a_sigmoid_with_another_use_stays() -> None:
    for body, outputs in (("z = Neg(h)", "float[N] y, float[N] z"), ("", "float[N] y, float[N] h")):
        count, operators, _ = fused(f"{FORM} {body} y = Mul(x, h)", outputs=outputs)
        assert count == 1 and {"HardSigmoid", "HardSwish"} <= set(operators)


def test_in_bodies() -> None:
    text = f"""(float[N] x, bool c) => (float[N] y) {{
        y = If (c) <then_branch = t () => (float[N] p) {{ {FORM} p = Mul(x, h) }},
                    else_branch = e () => (float[N] p) {{ p = Neg(x) }}> }}"""
    graph = model_io.load(corpus.parse(text))
    assert fuse_hardswish(graph) == 1
    assert [node.op for node in walk.nodes(graph)] == ["If", "HardSwish", "Neg"]


SHIFTED = " ".join(
    f"{name} = Constant<value_float = {number}> ()"
    for name, number in (("three", 3.0), ("zero", 0.0), ("six", 6.0))
)
WRITTEN_OUT = (
    "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
    "a = Add(three, x) c = Clip(a, zero, six) d = Div(c, six) y = Mul(d, x)",
    "sixth = Constant<value_float = 0.16666667> () a = Add(x, three) c = Clip(a, zero, six) "
    "m = Mul(c, x) y = Mul(m, sixth)",
    "sixth = Constant<value_float = 0.16666667> () s = Mul(x, sixth) a = Add(x, three) "
    "c = Clip(a, zero, six) y = Mul(s, c)",
)


@pytest.mark.parametrize("body", WRITTEN_OUT)
def test_written_with_a_clip(body: str) -> None:
    """Bound: as above, the operator itself rounds at most four times."""
    count, operators, model = fused(f"{SHIFTED} {body}")
    assert (count, [op for op in operators if op != "Constant"]) == (1, ["HardSwish"])
    exact = X.astype(np.float64) * np.clip(X.astype(np.float64) / 6 + 0.5, 0, 1)
    error = np.abs(conversion.run(model, {"x": X})["y"] - exact)
    assert (error <= 6 * 2.0**-24 * np.maximum(np.abs(X), 1)).all()


@pytest.mark.parametrize(
    "body",
    (
        "a = Add(x, six) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        "a = Add(x, three) c = Clip(a, zero, three) m = Mul(x, c) y = Div(m, six)",
        "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, three)",
        "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)",
        "z = Neg(x) a = Add(x, three) c = Clip(a, zero, six) m = Mul(z, c) y = Div(m, six)",
    ),
)
def test_another_function_with_a_clip(body: str) -> None:
    count, operators, _ = fused(f"{SHIFTED} {body}")
    assert count == 0 and "Clip" in operators


def test_prepared_in_an_older_opset() -> None:
    """Oracle: the model as it was, run by ONNX Runtime; opset 13 has no HardSwish."""
    model = corpus.parse(f"(float[N] x) => (float[N] y) {{ {SHIFTED} {WRITTEN_OUT[0]} }}", opset=13)
    graph = model_io.load(model)
    assert standardize(graph, select(graph)).changes["HardSwish fused"] == 1
    assert [node.op for node in graph.nodes] == ["HardSwish"] and graph.opset == 14
    found, exact = (conversion.run(m, {"x": X})["y"] for m in (graph_proto.export_model(graph), model))
    assert np.abs(found - exact).max() <= 6 * 2.0**-24 * 5
