"""Oracle: the full checker, and ONNX Runtime on the model as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from transforms import model_io

PLAIN = "(float[2,3,4,4] x) => (float[2,3,4,4] y) { y = MeanVarianceNormalization(x) }"
NAMED = PLAIN.replace("(x)", " <axes = [1]> (x)")
BODY = """(bool c, float[2,3,4,4] x) => (float[2,3,4,4] y) { y = If (c) <
    then_branch = t () => (float[2,3,4,4] p) { p = MeanVarianceNormalization (x) },
    else_branch = f () => (float[2,3,4,4] q) { q = Neg(x) }> }"""


@pytest.mark.parametrize("text", [PLAIN, NAMED, BODY], ids=["plain", "named", "body"])
@pytest.mark.parametrize("opset", [9, 13, 21])
def test_normalisations_with_default_axes_are_saved(text: str, opset: int, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> main {text}')
    path = tmp_path / "out.onnx"
    model_io.save(model_io.load(model), path)
    onnx.checker.check_model(path, full_check=True)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)}
    feed |= {"c": np.array(True)} if text is BODY else {}
    before, after = (
        ort.InferenceSession(one).run(None, feed)[0] for one in (model.SerializeToString(), str(path))
    )
    assert np.array_equal(before, after)
