"""Layers that are faster in float. Oracle: a machine with given times, and the files that are written."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnx
import pytest

from tests.helpers import origins
from tests.helpers.clock import Clock
from tools import quantize
from transforms.moves.lossy_layers import try_lossy_layers
from transforms.pipelines import beside_preset, decide, place
from transforms.pipelines.place import place as placing
from transforms.precision import place as module

FEEDS = origins.feeds(16)
TARGET = ("--target", "ort-cpu")
SAID = "In float, for speed: 2 of 8 layers: 'gemm1', 'gemm2'\n"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The options that name a model, its samples and an output."""
    return [*origins.options(tmp_path, FEEDS), "--force"]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A machine on which the second and third layer are slow in integers."""
    made = Clock({1: 6.0, 2: 6.0})
    monkeypatch.setattr(module, "profiled", made.profiled)
    monkeypatch.setattr(module, "faster_in_float", partial(module.faster_in_float, timer=made.timer))
    monkeypatch.setattr(place, "place", placing)
    monkeypatch.setattr(decide, "MOVES", [move for move in decide.MOVES if move is not try_lossy_layers])
    monkeypatch.setattr(
        beside_preset, "beside_preset", lambda _: None
    )  # layers in float for their time alone
    return made


def floats(path: str) -> list[str]:
    """Return the Gemms of a file whose weights are float."""
    graph = onnx.load(path).graph
    made = {name: node.op_type for node in graph.node for name in node.output}
    gemms = [node for node in graph.node if node.op_type == "Gemm"]
    return [node.name for node in gemms if made.get(node.input[1]) != "DequantizeLinear"]


def test_they_stay_float_and_the_recorded_scheme_makes_the_same_without_a_clock(
    files: list[str], clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize.main([*files, *TARGET]) == 0
    assert SAID in capsys.readouterr().out and floats(files[3]) == ["gemm1", "gemm2"]
    first, timed = onnx.load(files[3]), clock.timed
    (scheme,) = (entry.value for entry in first.metadata_props if entry.key.endswith("scheme"))
    (tmp_path / "s.toml").write_text(scheme)
    assert quantize.main([*files, "--config", str(tmp_path / "s.toml")]) == 0
    assert onnx.load(files[3]).graph == first.graph and clock.timed == timed
    assert SAID not in capsys.readouterr().out


def test_a_target_of_the_outputs_adds_to_them(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-per-channel", "--set", "weight_method=MinMax", "--min-sqnr", "16"]
    assert quantize.main([*files, *TARGET, *options]) == 0
    said = capsys.readouterr().out
    assert SAID in said and "Target of at least 16 dB" in said
    assert {"gemm1", "gemm2"} < set(floats(files[3]))


@pytest.mark.parametrize(
    "options",
    [
        [*TARGET, "--no-time"],
        [*TARGET, "--fast"],
        [*TARGET, "--set", "keep_float=false"],
        ["--config", "U8S8"],
        ["--target", "openvino"],
    ],
)
def test_nothing_is_timed_that_is_not_to_be(options: list[str], files: list[str], clock: Clock) -> None:
    assert quantize.main([*files, *options]) == 0
    assert not clock.timed and not floats(files[3])


def test_a_model_that_cannot_be_timed_is_written(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def _fail(*_: object) -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr(module, "faster_in_float", _fail)
    assert quantize.main([*files, *TARGET]) == 0
    assert "Layers not timed: no such kernel" in capsys.readouterr().out and not floats(files[3])
