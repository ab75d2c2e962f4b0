"""A scheme of which ``--set`` gives both formats, without a preset. Oracle: the same keys in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_narrow
from tests.helpers import build, tunable
from tools import auto_mixed_precision, quantize

NETWORK = tunable.conv_net()
SAMPLES = tunable.samples(NETWORK, 8)
(NAME,) = SAMPLES[0]


@pytest.mark.parametrize(("activation", "weight"), [("bfloat16", "bfp16"), ("int16", "int8")])
def test_formats_of_activations_and_weights_are_a_scheme(
    activation: str, weight: str, tmp_path: Path
) -> None:
    source, data, scheme = build.save(NETWORK, tmp_path / "m.onnx"), tmp_path / "d.npy", tmp_path / "s.toml"
    np.save(data, np.concatenate([one[NAME] for one in SAMPLES]))
    scheme.write_text(f'activation = "{activation}"\nweight = "{weight}"\n', encoding="utf-8")
    words = ["--data", str(data), "--fast", "--no-time"]
    keys = ["--set", f"activation={activation}", "--set", f"weight={weight}"]
    for output, config in (("a.onnx", keys), ("b.onnx", ["--config", str(scheme)])):
        assert quantize.main([str(source), str(tmp_path / output), *config, *words]) == 0
    first, second = (onnx.load(tmp_path / name).graph for name in ("a.onnx", "b.onnx"))
    assert first == second
    assignments = {"activation": activation, "weight": weight}
    made = onnx_narrow.quantize(source, data=data, assignments=assignments, fast=True, time=False)
    assert made.model.graph == first


def test_one_of_them_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = build.save(NETWORK, tmp_path / "m.onnx")
    for tool in (quantize, auto_mixed_precision):
        with pytest.raises(SystemExit, match="2"):
            tool.main([str(source), str(tmp_path / "q.onnx"), "--set", "activation=bfloat16"])
        assert "one of --config NAME|FILE, --target " in capsys.readouterr().err
