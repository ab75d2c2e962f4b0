"""Models that are opened in another process first. Oracle: ONNX Runtime in this one, which does not end."""

from __future__ import annotations

import onnx
import onnxruntime as ort
import pytest

from tests.helpers import corpus
from transforms.runtime.crash_probe import crash_of

OPENS = corpus.parse("(float[2] x) => (float[2] y) { y = Tanh(x) }")
REFUSED = corpus.parse("(float[2] x) => (float[2] y) { y = Tanh(x) }", opset=18)
REFUSED.graph.node[0].op_type = "NoSuchOperator"


@pytest.mark.parametrize(("model", "opens"), [(OPENS, True), (REFUSED, False)])
def test_no_process_ends_where_the_runtime_opens_a_model_or_refuses_it(
    model: onnx.ModelProto, opens: bool
) -> None:
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # the runtime's exceptions share no narrower class
        assert not opens
    else:
        assert opens
    assert crash_of(model, int(ort.GraphOptimizationLevel.ORT_ENABLE_ALL)) == ""
