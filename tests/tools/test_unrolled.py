"""Sequences through the tools. Oracle: the same steps as single samples, with their states."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_narrow
from tools import convert_fp32_to_bf16, evaluate, finetune, infer, quantize, report

NET = """<ir_version: 8, opset_import: ["": 17]>
main (float[1, 8] x, float[1, 8] h) => (float[1, 8] y, float[1, 8] h_out) {
    a = MatMul (x, w)  b = MatMul (h, u)  s = Add (a, b)  h_out = Tanh (s)  y = MatMul (h_out, v)
}"""
STEPS = 32


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A model, a sequence in ``data``, and its steps with their states in ``steps``."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(NET)
    weights = {name: random.standard_normal((8, 8)).astype(np.float32) / 3 for name in "wuv"}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in weights.items())
    onnx.save(model, tmp_path / "m.onnx")
    x = random.standard_normal((STEPS, 1, 8)).astype(np.float32)
    for folder in ("data", "steps"):
        (tmp_path / folder).mkdir()
    np.savez(tmp_path / "data" / "a.npz", x=x)
    return tmp_path


def run(tool: object, scene: Path, *arguments: str) -> None:
    words = [word.format(scene=scene) for word in arguments]
    assert tool.main(words) == 0, words  # type: ignore[attr-defined]


INFER = ("--input", "{scene}/m.onnx", "--data", "{scene}/data", "--sequences", "--output", "{scene}/float")


def unroll(scene: Path) -> None:
    """Write the steps of the sequence as samples, with the states that the float model made."""
    run(infer, scene, *INFER)
    x, h = np.load(scene / "data" / "a.npz")["x"], np.zeros((1, 8), np.float32)
    for i in range(STEPS):
        np.savez(scene / "steps" / f"a.{i + 1:06d}.npz", x=x[i], h=h)
        h = np.load(scene / "float" / "h_out" / f"a.{i + 1:06d}.npy")


@pytest.mark.parametrize(
    "command",
    [
        (quantize, "--input", "{scene}/m.onnx", "--config", "A8W8"),
        (quantize, "--input", "{scene}/m.onnx", "--config", "BF16_MIXED_BFP16"),
        (convert_fp32_to_bf16, "--input", "{scene}/m.onnx", "--min-sqnr", "30"),
    ],
)
def test_a_sequence_is_its_steps_with_their_states(command: tuple, scene: Path) -> None:
    unroll(scene)
    tool, *arguments = command
    run(tool, scene, *arguments, "--data", "{scene}/data", "--sequences", "--output", "{scene}/a.onnx")
    run(tool, scene, *arguments, "--data", "{scene}/steps", "--output", "{scene}/b.onnx")
    assert (scene / "a.onnx").read_bytes() == (scene / "b.onnx").read_bytes()


def test_states_are_named_in_python_as_on_the_command_line(scene: Path) -> None:
    onnx_narrow.quantize(
        scene / "m.onnx",
        scene / "p.onnx",
        config="A8W8",
        data=scene / "data",
        sequences=True,
        states={"h": "h_out"},
    )
    options = "--config", "A8W8", "--data", "{scene}/data", "--sequences", "--state", "h=h_out"
    run(quantize, scene, "--input", "{scene}/m.onnx", "--output", "{scene}/c.onnx", *options)
    assert (scene / "p.onnx").read_bytes() == (scene / "c.onnx").read_bytes()


def test_errors_are_told_after_steps(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(infer, scene, *INFER)
    made = ("--config", "A8W8", "--data", "{scene}/data", "--sequences", "--output", "{scene}/q.onnx")
    run(quantize, scene, "--input", "{scene}/m.onnx", *made)
    run(infer, scene, "--input", "{scene}/q.onnx", *INFER[2:5], "--output", "{scene}/int")
    folders = ("--baseline_results_folder", "{scene}/float", "--quantized_results_folder", "{scene}/int")
    run(evaluate, scene, *folders, "--json", "{scene}/e.json")
    said = capsys.readouterr().out
    assert "Ran 1 sequence of 32 steps, fed back: h_out to h\n" in said
    assert "Sqnr over the first steps of sequences:\n" in said
    told = json.loads((scene / "e.json").read_text())["steps"]["y"]
    parts = [
        [np.load(scene / side / "y" / f"a.{i:06d}.npy") for i in range(1, 31)] for side in ("float", "int")
    ]
    exact, found = np.array(parts, np.float64)
    assert told.keys() == {"1", "30"}
    assert told["30"] == pytest.approx(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


def test_tuning_and_report_take_sequences(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", "{scene}/data", "--sequences")
    run(quantize, scene, "--input", "{scene}/m.onnx", "--config", "W4A8", *data, "--output", "{scene}/q.onnx")
    pair = ("--float", "{scene}/m.onnx", "--quantized", "{scene}/q.onnx")
    run(finetune, scene, *pair, *data, "--output", "{scene}/t.onnx")
    run(report, scene, *pair, *data, "--output", "{scene}/r.html")
    said = capsys.readouterr().out
    assert "on 32 samples" in said
    commands = [line for line in said.splitlines() if "--data" in line]
    assert all(f"--data {scene / 'data'} --sequences" in line for line in commands)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sequences", "--state", "h=z"), "output 'z' is unknown, legal are y, h_out"),
        (("--state", "h=h_out"), "--state requires --sequences"),
    ],
)
def test_wrong_states(
    options: tuple[str, ...], message: str, scene: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--input", str(scene / "m.onnx"), "--config", "A8W8", "--output", str(scene / "q.onnx")]
    try:
        code = quantize.main([*arguments, "--data", str(scene / "data"), *options])
    except SystemExit as leaving:
        code = leaving.code
    assert code in (1, 2)
    assert message in capsys.readouterr().err


def test_states_without_a_known_name_are_named(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(scene / "m.onnx")
    names = {"h": "b0", "h_out": "z"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        for ends in (node.input, node.output):
            ends[:] = [names.get(name, name) for name in ends]
    onnx.save(model, scene / "m.onnx")
    words = [word.format(scene=scene) for word in INFER]
    assert infer.main(words) == 1
    said = capsys.readouterr().err
    assert "no array for input 'b0'" in said and "('y', 'z' may be): --state b0=OUTPUT" in said
    assert infer.main([*words, "--state", "b0=z", "--force"]) == 0
    assert "fed back: z to b0\n" in capsys.readouterr().out
