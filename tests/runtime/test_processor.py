"""What kernels compute here. Oracles: whole numbers, added in pairs or not; runs in an emulator elsewhere."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ops.pair_sums import pair_sums
from tests.helpers import build
from transforms.runtime import processor
from transforms.runtime.processor import sums_saturate


def test_what_is_said_is_what_kernels_do() -> None:
    """On a processor without VNNI too: ``tests/processors`` emulates one."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (5, 64)).astype(np.uint8)
    w = random.integers(-128, 128, (64, 9)).astype(np.int8)
    node = build.helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    ends = [build.value("x", x.shape, np.uint8)], [build.value("y", [5, 9], np.int32)]
    session = ort.InferenceSession(build.model([node], *ends, {"w": w}).SerializeToString())
    made, exact, in_pairs = session.run(None, {"x": x})[0], x.astype(int) @ w.astype(int), pair_sums(x, w)
    assert (exact != in_pairs).any()
    assert np.array_equal(made, in_pairs if sums_saturate() else exact)


@pytest.mark.parametrize(("total", "saturates"), [(1_048_544, True), (2_072_640, False)])
def test_the_sum_of_large_products_tells(
    total: int, saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "compute", lambda *_: {"y": np.array([[total]], np.int32)})
    assert sums_saturate.__wrapped__() is saturates
