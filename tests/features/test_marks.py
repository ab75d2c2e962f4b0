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
import sys, numpy as np, onnx_narrow
samples = [np.random.default_rng(i).random((1, 1, 8, 8), np.float32) for i in range(16)]
onnx_narrow.quantize("tests/examples/digits.onnx", config={config!r}, data=samples, progress=lambda *_: None)
folders = {{name.split(".")[2] for name in sys.modules if name.startswith("transforms.features.")}}
print(*sorted(folders - {{"hooks"}}))
"""


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


@pytest.mark.parametrize(("config", "loaded"), [("A8W8", ""), ("A8W8_DYNAMIC", "dynamic")])
def test_a_convolution_network_loads_what_its_scheme_asks_for(config: str, loaded: str) -> None:
    code = LOADED.format(config=config)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == loaded
