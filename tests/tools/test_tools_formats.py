"""python -m tools.formats: the table, the weights of a model, the plot, and what it refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ops
from onnx_narrow.api.fidelity import fidelity
from tools import formats


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weight = np.full((64, 64), 0.75, np.float32)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_table_has_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert formats.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["format", *ops.FORMATS]
    mx9 = next(line.split() for line in lines if line.startswith("mx9"))
    assert mx9[:3] == ["mx9", "9", "16"]
    assert float(mx9[3]) == pytest.approx(46.5, abs=0.1)
    assert float(mx9[4]) < float(mx9[3])  # outliers cost a block format more


def test_weights_of_a_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0.75 is a number of every floating format: no error at all."""
    assert formats.main(["--model", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "weights dB" in lines[0]
    assert next(line.split()[3] for line in lines if line.startswith("mxfp4")) == "inf"


def test_fidelity_is_the_definition() -> None:
    x = np.array([1.0, 1.0 + 2.0**-9], np.float32)  # the second is rounded down by 2^-9 to bfloat16's 1
    expected = 10 * np.log10((x.astype(float) ** 2).sum() / 2.0**-18)
    assert fidelity([x], "bfloat16") == pytest.approx(expected)


def test_model_without_weights(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load(model)
    proto.graph.node[0].CopyFrom(helper.make_node("Identity", ["x"], ["y"]))
    del proto.graph.initializer[:]
    onnx.save(proto, tmp_path / "bare.onnx")
    assert formats.main(["--model", str(tmp_path / "bare.onnx")]) == 1
    assert "has no float weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plot", "words"), [("plot.pdf", "must end in .png or .svg"), ("missing/plot.png", "does not exist")]
)
def test_plots_that_cannot_be(
    plot: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert formats.main(["--plot", str(tmp_path / plot)]) == 1
    captured = capsys.readouterr()
    assert words in captured.err and captured.out == ""


def test_plot_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert formats.main(["--plot", str(tmp_path / "plot.png")]) == 1
    assert "plots need matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert formats.main(["--plot", str(tmp_path / f"plot{suffix}")]) == 0
    assert (tmp_path / f"plot{suffix}").stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == [f"plot{suffix}"]


def test_an_existing_plot_is_overwritten_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    plot.write_text("mine")
    assert formats.main(["--plot", str(plot)]) == 1
    assert "exists; --force overwrites it" in capsys.readouterr().err
    assert plot.read_text() == "mine"
    assert formats.main(["--plot", str(plot), "--force"]) == 0
    assert plot.read_text() != "mine"


@pytest.mark.parametrize("argv", [["--mode", "x"], ["m.onnx", "extra"]])
def test_usage_errors(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        formats.main(argv)
    assert caught.value.code == 2
