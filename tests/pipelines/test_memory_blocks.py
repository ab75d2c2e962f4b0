"""A voice detector of memory blocks (FSMN) and few samples. Oracle: the float model on others."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

import onnx_narrow
from tests.helpers import build
from transforms.scheme import preset

FRAMES, FEATURES, WIDTH, PLACES = 40, 20, 64, 32
LOUD, FACTOR = 5, 64
"""A channel of the first layer, and how much louder than the others it is, which the next one makes good."""


def detector() -> onnx.ModelProto:
    """Return an affine layer, two memory blocks, and an affine layer before a Softmax for each frame.

    A memory block sums up the last frames of each channel, between two affine layers.
    """
    random = np.random.default_rng(0)

    def _matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    weights = {"first": _matrix(FEATURES, WIDTH), "shift": random.standard_normal(WIDTH, np.float32) / 4}
    weights |= {"out": _matrix(WIDTH, 8)}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["first_product"], "first"),
        helper.make_node("Add", ["first_product", "shift"], ["first_sum"], "first_bias"),
        helper.make_node("Relu", ["first_sum"], ["r0"], "first_relu"),
    ]
    for i in range(2):
        weights |= {f"down{i}": _matrix(WIDTH, PLACES), f"up{i}": _matrix(PLACES, WIDTH)}
        weights[f"memory{i}"] = random.standard_normal((PLACES, 1, 5), np.float32) / 2
        nodes += [
            helper.make_node("MatMul", [f"r{i}", f"down{i}"], [f"d{i}"], f"down{i}"),
            helper.make_node("Transpose", [f"d{i}"], [f"t{i}"], f"turn{i}", perm=[0, 2, 1]),
            helper.make_node(
                "Conv", [f"t{i}", f"memory{i}"], [f"c{i}"], f"memory{i}", group=PLACES, pads=[4, 0]
            ),
            helper.make_node("Add", [f"t{i}", f"c{i}"], [f"s{i}"], f"sum{i}"),
            helper.make_node("Transpose", [f"s{i}"], [f"b{i}"], f"back{i}", perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"b{i}", f"up{i}"], [f"u{i}"], f"up{i}"),
            helper.make_node("Relu", [f"u{i}"], [f"r{i + 1}"], f"relu{i}"),
        ]
    nodes.append(helper.make_node("MatMul", ["r2", "out"], ["scores"], "out"))
    nodes.append(helper.make_node("Softmax", ["scores"], ["y"], "softmax"))
    weights["first"][:, LOUD] *= FACTOR
    weights["shift"][LOUD] *= FACTOR
    weights["down0"][LOUD] /= FACTOR
    ends = build.value("x", [1, "frames", FEATURES]), build.value("y", [1, "frames", 8])
    return build.model(nodes, [ends[0]], [ends[1]], weights)


MODEL = detector()


def frames(seed: int) -> dict[str, NDArray[np.float32]]:
    return {"x": np.random.default_rng(seed).standard_normal((1, FRAMES, FEATURES), np.float32)}


def decibels(model: onnx.ModelProto) -> float:
    sessions = [ort.InferenceSession(one.SerializeToString()) for one in (MODEL, model)]
    pairs = [[session.run(None, frames(seed))[0] for session in sessions] for seed in range(90, 98)]
    floats, found = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return float(10 * np.log10(np.sum(floats**2) / np.sum((floats - found) ** 2)))


@pytest.mark.parametrize("goal", [{}, {"min_sqnr": 20}])
@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_outliers_are_moved_with_any_number_of_samples(count: int, goal: dict[str, float]) -> None:
    """With fewer than four, outputs do not judge the moves; of six, a goal leaves three to find them on."""
    config = preset("A8W8_DYNAMIC").with_(dynamic_ranges="tensor")  # which outliers ruin
    given = {"config": config, "data": [frames(seed) for seed in range(count)], "time": False, **goal}
    found = onnx_narrow.quantize(MODEL, **given)  # type: ignore[arg-type]
    assert "r0" in found.scheme.outliers and not found.scheme.move_outliers
    plain = onnx_narrow.quantize(MODEL, assignments=["move_outliers=false"], **given | {"min_sqnr": None})  # type: ignore[arg-type]
    assert decibels(found.model) > decibels(plain.model) + 3
    again = onnx_narrow.quantize(MODEL, config=found.scheme, data=given["data"], time=False)  # type: ignore[arg-type]
    assert again.model.graph == found.model.graph
