"""How images become inputs, by ``preprocess``. Oracle: the same images with mean and scale, or arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import onnx_narrow
from tools import infer
from transforms.files.spelling import UsageError

SCALES = {
    "imagenet": {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)},
    "mobilenet": {"mean": 127.5, "std": 127.5},
    "zero-one": {"std": 255},
}
CODE = """
import numpy as np


def halves(image):
    return np.asarray(image, np.float64).transpose(2, 0, 1) / 2


def fails(image):
    raise KeyError("nothing")


def nothing(image):
    return None
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a model that returns its image, two pictures and a file of functions."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 4, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    (tmp_path / "d").mkdir()
    for i, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (2, 4, 4, 3), np.uint8)):
        Image.fromarray(pixels).save(tmp_path / f"d/{i}.png")
    (tmp_path / "own.py").write_text(CODE, encoding="utf-8")
    return tmp_path / "m.onnx"


def outputs(model: Path, **keywords: Any) -> list[np.ndarray]:
    folders = onnx_narrow.infer(model, model.parent / "out", data=model.parent / "d", force=True, **keywords)
    return [np.load(path) for path in sorted(next(iter(folders.values())).glob("*.npy"))]


@pytest.mark.parametrize("name", SCALES)
def test_names_stand_for_mean_and_scale(name: str, model: Path) -> None:
    assert np.array_equal(outputs(model, preprocess=name), outputs(model, **SCALES[name]))


@pytest.mark.parametrize("is_file", [True, False])
def test_functions_make_the_input(is_file: bool, model: Path) -> None:
    """float64 becomes the type of the input, and gets a batch of one."""
    own: dict[str, Any] = {}
    exec(CODE, own)
    found = outputs(model, preprocess=f"{model.parent / 'own.py'}:halves" if is_file else own["halves"])
    assert np.array_equal(found, outputs(model, std=2))


def test_images_line_names_the_function(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"{model.parent / 'own.py'}:halves"
    words = ["--input", str(model), "--data", str(model.parent / "d"), "--preprocess", place]
    assert infer.main([*words, "--output", str(model.parent / "o")]) == 0
    assert f"Images: 2 by {place}, 3x4x4, the first = " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"preprocess": "mobilent"}, "did you mean 'mobilenet'"),
        ({"preprocess": "no.py:f"}, "there is no file 'no.py'"),
        ({"preprocess": "{own}:halve"}, "there is no function 'halve'"),
        ({"preprocess": "{own}:fails"}, "fails' failed on '0.png': KeyError"),
        ({"preprocess": "{own}:nothing"}, "nothing' returned no array for '0.png', but NoneType"),
        ({"preprocess": "imagenet", "mean": 3}, "mean cannot be combined with preprocess 'imagenet'"),
        ({"preprocess": "zero-one", "std": 3}, "std cannot be combined with preprocess 'zero-one'"),
        ({"preprocess": "{own}:halves", "image_size": 3}, "image_size cannot be combined with preprocess"),
    ],
)
def test_errors_name_the_keyword_or_the_image(keywords: dict[str, Any], words: str, model: Path) -> None:
    way = keywords["preprocess"].replace("{own}", str(model.parent / "own.py"))
    with pytest.raises(ValueError, match=words) as caught:
        outputs(model, **{**keywords, "preprocess": way})
    assert "\n" not in str(caught.value)
    if "cannot be combined" in words:
        assert isinstance(caught.value, UsageError)
