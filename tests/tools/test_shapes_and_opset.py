"""``--input-shape`` and ``--opset``. Oracle: what the written model declares, and its own scheme."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.tool_process import ROOT
from tools import auto_mixed_precision, convert_fp32_to_bf16, quantize

MODEL = str(ROOT / "tests" / "examples" / "digits.onnx")
TOOLS = {
    "quantize": (quantize.main, ["--config", "A8W8", "--random-data", "2"]),
    "blocks": (quantize.main, ["--config", "MX9"]),
    "mixing": (auto_mixed_precision.main, ["--config", "BF16_MIXED_BFP16"]),
    "bf16": (convert_fp32_to_bf16.main, []),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_shapes_and_opset_are_those_asked_for(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, options = TOOLS[tool]
    target = str(tmp_path / "q.onnx")
    asked = ["--input-shape", "images:3,1,8,8", "--opset", "18"]
    assert main(["--input", MODEL, "--output", target, *options, *asked]) == 0
    made = onnx.load(target)
    onnx.checker.check_model(made, full_check=True)
    ends = [*made.graph.input, *made.graph.output]
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in ends]
    assert shapes == [[3, 1, 8, 8], [3, 10]]
    assert {o.domain: o.version for o in made.opset_import}[""] == 18
    assert "Fixed: 1 free dimension of inputs\n" in capsys.readouterr().out


def test_a_lower_opset_is_written_if_the_nodes_allow_it(tmp_path: Path) -> None:
    target = str(tmp_path / "q.onnx")
    given = ["--input", MODEL, "--output", target, "--config", "A8W8", "--random-data", "2"]
    assert quantize.main([*given, "--opset", "13"]) == 0
    made = onnx.load(target)
    assert (made.opset_import[0].version, made.ir_version) == (13, 7)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_opset_that_cannot_be_kept_is_refused(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, options = TOOLS[tool]
    text = "main (float[N,M,4] x) => (float[N,M,4] y) { y = Softmax <axis = 0> (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 12]> {text}'), tmp_path / "m.onnx")
    given = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "q.onnx"), *options]
    assert main([*given, "--opset", "13"]) == 1
    words = "cannot be raised from opset 12 to 13: Softmax 'y': it has no equivalent before opset 14"
    assert words in capsys.readouterr().err and not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config", "A16W8", "--opset", "17"], "opset 17 is too low for integers of 2, 4 and 16 bits"),
        (["--config", "A8W8", "--opset", "12"], "12 is not a whole number from 13"),
        (["--config", "A8W8", "--input-shape", "images:1,1,9,8"], "dimension 2 is 8, it cannot be 9"),
        (["--config", "A8W8", "--input-shape", "image:1"], "input 'image' is unknown, did you mean 'images'"),
        (["--config", "A8W8", "--input-shape", "images:1,x"], "--input-shape: x is not a whole number"),
        (
            ["--config", "A8W8", "--input-shape", "images:1,1,8,8", "--input-shape", "images:2,1,8,8"],
            "--input-shape 'images' is given twice",
        ),
        (["--config", "A8W8", "--set", "opset=3"], "opset is 3, legal are 13 to"),
        (["--config", "A8W8", "--set", "input_shapes={images=[1,0]}"], "input_shapes entry 'images' is"),
    ],
)
def test_others_are_refused_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--input", MODEL, "--output", str(tmp_path / "q.onnx"), "--random-data", "2", *options]
    try:
        assert quantize.main(given) == 1
    except SystemExit as left:
        assert left.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "random" not in line]
    assert len(errors) == 1 and message in errors[0]
    assert not list(tmp_path.iterdir())


def test_samples_have_to_fit_the_fixed_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "0.npy", np.zeros((1, 1, 8, 8), np.float32))
    given = [
        "--input",
        MODEL,
        "--output",
        str(tmp_path / "q.onnx"),
        "--config",
        "A8W8",
        "--data",
        str(folder),
    ]
    assert quantize.main([*given, "--input-shape", "images:2,1,8,8"]) == 1
    assert "shape [1, 1, 8, 8] instead of [2, 1, 8, 8]" in capsys.readouterr().err
