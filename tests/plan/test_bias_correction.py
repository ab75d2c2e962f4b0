"""Biases that cannot take back what rounding weights does. Oracle: the float model, and its bias in int32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers import build
from tools import quantize
from transforms import model_io
from transforms.plan.bias_correction import corrected
from transforms.run.run_model import open_model

WIDTH = 12
SHAPES = [(), (1,), (3, WIDTH), (3, 1), (1, 1)]


def _model(path: Path, bias: np.ndarray, **attributes: float) -> Path:
    """Write a Gemm whose bias has one number for each channel, and one with ``bias`` on the same input."""
    random = np.random.default_rng(4)
    weights = {name: random.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in ("w", "v")}
    weights |= {"plain": random.standard_normal(WIDTH).astype(np.float32), "bias": bias.astype(np.float32)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "plain"], ["y"], "first"),
        helper.make_node("Gemm", ["x", "v", "bias"], ["z"], "second", **attributes),
    ]
    ends = [build.value(name, [3, WIDTH]) for name in ("x", "y", "z")]
    return build.save(build.model(nodes, ends[:1], ends[1:], weights), path)


def _samples(folder: Path) -> Path:
    folder.mkdir()
    for i in range(12):
        values = np.abs(np.random.default_rng(i).standard_normal((3, WIDTH)))
        np.save(folder / f"{i}.npy", values.astype(np.float32))
    return folder


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", ([], ["--fast", "--set", "correct_biases=true"]))
def test_a_bias_that_channels_share_is_not_corrected(
    shape: tuple[int, ...], options: list[str], tmp_path: Path
) -> None:
    bias = np.random.default_rng(1).standard_normal(shape)
    source, target, data = _model(tmp_path / "m.onnx", bias), tmp_path / "q.onnx", _samples(tmp_path / "data")
    words = ["--input", source, "--output", target, "--config", "U8S8", "--data", data, *options]
    assert quantize.main([str(word) for word in words]) == 0
    held = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(target).graph.initializer}
    if "bias_quantized" in held:
        found = held["bias_quantized"] * np.asarray(held["bias_scale"], np.float64)
        np.testing.assert_allclose(found, bias, rtol=0, atol=1e-3)
    else:
        np.testing.assert_array_equal(held["bias"], bias.astype(np.float32))


def test_a_bias_without_effect(tmp_path: Path) -> None:
    source, target = _model(tmp_path / "m.onnx", np.ones(WIDTH), beta=0.0), tmp_path / "q.onnx"
    words = ["--input", source, "--output", target, "--config", "U8S8", "--data", _samples(tmp_path / "data")]
    assert quantize.main([*map(str, words), "--no-optimize"]) == 0
    assert target.exists()


def test_the_bias_of_a_layer_whose_input_has_no_known_rank(tmp_path: Path) -> None:
    """The rank after a ConvTranspose by a filter of free sizes is not inferred; another bias is corrected."""
    random = np.random.default_rng(2)
    nodes = [
        helper.make_node("ConvTranspose", ["x", "k"], ["h"], "turned"),
        helper.make_node("Conv", ["h", "w", "a"], ["y"], "first"),
        helper.make_node("Conv", ["x", "w", "b"], ["z"], "second"),
    ]
    weights = {"w": random.standard_normal((4, 4, 1, 1)).astype(np.float32)}
    weights |= {name: random.standard_normal(4).astype(np.float32) for name in ("a", "b")}
    shapes = {"x": [2, 4, 5, 5], "k": ["A", "B", "C", "D"], "y": list("EFGH"), "z": [2, 4, 5, 5]}
    ends = [build.value(name, shape) for name, shape in shapes.items()]
    source = build.save(build.model(nodes, ends[:2], ends[2:], weights, opset=10), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        sizes = {"x": (2, 4, 5, 5), "k": (4, 4, 1, 1)}
        arrays = {name: random.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
        np.savez(tmp_path / "data" / f"{i}.npz", **arrays)
    words = ["--input", source, "--output", tmp_path / "q.onnx", "--config", "U8S8", "--data"]
    assert quantize.main([str(word) for word in (*words, tmp_path / "data")]) == 0


LAYERS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, float]]] = {
    "Gemm": ("Gemm", (3, 6), (6, 4), {}),
    "Gemm, turned and scaled": ("Gemm", (3, 6), (4, 6), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    "Conv": ("Conv", (3, 6, 5, 5), (4, 6, 3, 3), {}),
    "grouped Conv": ("Conv", (3, 6, 5, 5), (4, 3, 3, 3), {"group": 2}),
    "ConvTranspose": ("ConvTranspose", (3, 6, 5, 5), (6, 4, 1, 1), {}),
}


@pytest.mark.parametrize("case", LAYERS)
def test_a_corrected_bias_takes_back_what_the_weight_adds_to_the_mean_of_each_channel(case: str) -> None:
    """Oracle: ONNX Runtime on the layer before and after, on channels that are the same everywhere."""
    op, shape, sizes, attributes = LAYERS[case]
    random = np.random.default_rng(5)
    weight, bias = random.standard_normal(sizes).astype(np.float32), np.ones(4, np.float32)
    error = (0.1 * random.standard_normal(sizes)).astype(np.float32)
    data = random.standard_normal((*shape[:2], *[1] * (len(shape) - 2))) + 1.0
    feed = {"x": np.broadcast_to(data, shape).astype(np.float32)}
    node = helper.make_node(op, ["x", "w", "b"], ["y"], **attributes)
    output = build.value("y", [None] * len(shape))

    def means(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        model = build.model([node], [build.value("x", shape)], [output], {"w": weight, "b": bias})
        y = open_model(model_io.load(model)).run(feed)["y"]
        return y.mean(axis=tuple(i for i in range(y.ndim) if i != 1), dtype=np.float64)

    model = build.model([node], [build.value("x", shape)], [output], {"w": weight, "b": bias})
    (layer,) = model_io.load(model).nodes
    of_inputs = {("x", 1): data.mean(axis=0).reshape(-1)}
    better = corrected(layer, bias, error, of_inputs)
    assert better is not None
    expected = means(weight, bias)
    assert np.abs(means(weight + error, bias) - expected).max() > 0.01, "there is something to take back"
    np.testing.assert_allclose(means(weight + error, better), expected, rtol=1e-5, atol=1e-5)
