"""Features are opened by their marks, and by nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from transforms.features import FEW_BITS, asked_for, open_in
from transforms.scheme import preset

ROOT = Path(__file__).parents[2]
ROUNDED, EXPERTS = "a product that rounds its input at run time", "a mixture of experts"

LOADED = """
import sys, onnx_narrow
data = {{"data": {data!r}, "limit": 4}} if {data!r} else {{}}
onnx_narrow.quantize({model!r}, config={config!r}, time=False, progress=lambda *_: None, **data)
folders = {{name.split(".")[2] for name in sys.modules if name.startswith("transforms.features.")}}
print(*sorted(folders - {{"hooks"}}))
"""

DIGITS = "examples/digits/resnet.onnx", "examples/digits/calibration.npz"
ROWS = "examples/rows/lstm.onnx", "examples/rows/calibration.npz"
TEXT = "examples/text/decoder.onnx"


@pytest.mark.parametrize(
    ("marks", "nouns"),
    [
        (["Conv", "Relu", "QuantizeLinear"], []),
        (["MatMulInteger", "Mul"], []),
        (["MatMulInteger", "Cast", "Mul", "Add"], [ROUNDED]),
        (["ReduceMax", "Max", "Div"], []),
        (["QuantizeLinear", "Div", "Max", "ReduceMax"], [ROUNDED]),
        (["TopK"], []),
        (["TopK", FEW_BITS], [EXPERTS]),
        (["GRU", "MoE"], [EXPERTS, "a recurrent layer"]),
    ],
)
def test_marks_of_graphs(marks: list[str], nouns: list[str]) -> None:
    assert [feature.noun for feature in open_in(marks)] == nouns


def test_keys_of_schemes() -> None:
    plain, layers = preset("A8W8"), {"Gemm": {"dynamic": True, "activation": "float32"}}
    assert asked_for(plain) == ()
    assert [feature.noun for feature in asked_for(preset("A8W8_DYNAMIC"))] == [ROUNDED]
    mixed = plain.with_(layers=layers)
    assert [feature.noun for feature in asked_for(mixed, *mixed.layers.values())] == [ROUNDED]


@pytest.mark.parametrize(
    ("model", "data", "config", "loaded"),
    [
        (*DIGITS, "A8W8", ""),
        (*DIGITS, "A8W8_DYNAMIC", "dynamic"),
        (*ROWS, "A8W8", "recurrent"),
        (*ROWS, "A8W8_DYNAMIC", "dynamic recurrent"),
        (TEXT, "", "W4", "language"),
    ],
)
def test_a_job_loads_the_features_that_its_model_and_options_ask_for(
    model: str, data: str, config: str, loaded: str
) -> None:
    code = LOADED.format(model=model, data=data, config=config)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == loaded
