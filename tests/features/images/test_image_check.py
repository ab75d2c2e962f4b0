"""A warning for images of another scale than in training.

Oracle: models made for one scale, with the statistics of that scale computed here by NumPy, and the same
images on the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from ops.array_types import Feed
from tools import infer, quantize
from transforms import model_io
from transforms.features.images.image_check import scale_warning
from transforms.run.image_options import SCALINGS, ImageOptions

RNG = np.random.default_rng(5)
PIXELS = [np.kron(RNG.integers(0, 256, (1, 3, 4, 4)), np.ones((1, 1, 4, 4))) for _ in range(6)]
WEIGHTS = RNG.normal(size=(8, 3, 3, 3)).astype(np.float32)
OPTIONS = {"pixel": ImageOptions()} | {
    name: ImageOptions(mean=mean, std=std) for name, (mean, std) in SCALINGS.items()
}


def scaled(options: ImageOptions) -> list[np.ndarray]:
    mean, std = (np.reshape(numbers, (1, -1, 1, 1)) for numbers in (options.mean, options.std))
    return [((pixels - mean) / std).astype(np.float32) for pixels in PIXELS]


def convolved(images: list[np.ndarray]) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate(images), (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, WEIGHTS)


def network(nodes: list[onnx.NodeProto], arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 16, 16])
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "net", [image], [end], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normalised(trained: str) -> onnx.ModelProto:
    made = convolved(scaled(OPTIONS[trained]))
    mean, variance = made.mean((0, 2, 3)), made.var((0, 2, 3))
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], "bn"),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    return network(
        nodes, {"w": WEIGHTS, "g": np.ones(8), "b": np.zeros(8), "m": 1.1 * mean, "v": 1.3 * variance}
    )


def folded(trained: str) -> onnx.ModelProto:
    """The same without BatchNormalization, whose scale is in the weights, and an activation up to 6."""
    made = convolved(scaled(OPTIONS[trained]))
    mean, deviation = made.mean((0, 2, 3)), made.std((0, 2, 3))
    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["c"], "first"),
        helper.make_node("Clip", ["c", "low", "high"], ["y"]),
    ]
    weights = WEIGHTS / deviation[:, None, None, None]
    bias = 0.5 * RNG.normal(size=8) - mean / deviation
    return network(nodes, {"w": weights, "b": bias, "low": np.array(0), "high": np.array(6)})


def warnings(model: onnx.ModelProto, given: str) -> list[str]:
    def _read(options: ImageOptions) -> Iterator[tuple[str, Feed]]:
        return ((str(i), {"image": image}) for i, image in enumerate(scaled(options)))

    return list(scale_warning(model_io.load(model), _read, OPTIONS[given]))


@pytest.mark.parametrize(("trained", "given"), [*product(OPTIONS, OPTIONS)])
def test_statistics_of_the_training_tell_the_scale(trained: str, given: str) -> None:
    near = {trained, given} == {"mobilenet", "imagenet"}  # about the same numbers
    found = warnings(normalised(trained), given)
    if trained == given:
        assert not found
    elif not near:
        (line,) = found
        way = "without " if trained == "pixel" else f"try preprocess='{trained}'"
        assert "the first BatchNormalization, 'bn'" in line and way in line


@pytest.mark.parametrize(("trained", "given"), [("pixel", "zero-one"), ("imagenet", "pixel")])
def test_bias_and_activation_tell_a_scale_that_is_far_off(trained: str, given: str) -> None:
    assert not warnings(folded(trained), trained)
    (line,) = warnings(folded(trained), given)
    assert "the first Conv, 'first'" in line


@pytest.mark.parametrize(
    ("value", "right"),
    [("NominalRange_0_255", "pixel"), ("Normalized_0_1", "zero-one"), ("Normalized_1_1", "mobilenet")],
)
def test_metadata_tell_the_range(value: str, right: str) -> None:
    """Oracle: ONNX's page on metadata of images."""
    model = network([helper.make_node("Relu", ["image"], ["y"])], {})
    helper.set_model_props(model, {"Image.NominalPixelRange": value})
    for given in OPTIONS:
        assert [line.partition(": ")[0] for line in warnings(model, given)] == ["Warning"] * (given != right)


def test_models_without_traces_are_silent() -> None:
    for ops in (["Relu"], ["MaxPool"]):
        attributes = {"kernel_shape": [2, 2]} if ops == ["MaxPool"] else {}
        model = network([helper.make_node(ops[0], ["image"], ["y"], **attributes)], {})
        assert not any(warnings(model, given) for given in OPTIONS)


@pytest.mark.parametrize("job", [quantize, infer])
def test_a_job_on_a_folder_of_images_warns(
    job: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the scale of the training is the one that it names, and is not warned of."""
    onnx.save(normalised("mobilenet"), tmp_path / "m.onnx")
    (tmp_path / "d").mkdir()
    for i, pixels in enumerate(PIXELS):
        Image.fromarray(pixels[0].transpose(1, 2, 0).astype(np.uint8)).save(tmp_path / f"d/{i}.png")
    words = ["--input", f"{tmp_path}/m.onnx", "--data", f"{tmp_path}/d", "--output"]
    words += [f"{tmp_path}/o.onnx", "--config", "A8W8", "--fast"] if job is quantize else [f"{tmp_path}/o"]
    assert job.main([*words, "--force"]) == 0
    said = capsys.readouterr()
    assert "images do not fit the model" in said.err and "try --preprocess mobilenet" in said.err
    assert job.main([*words, "--force", "--preprocess", "mobilenet"]) == 0
    said = capsys.readouterr()
    assert "do not fit" not in said.err and "Images: 6 of 16x16" in said.out
