"""Commands and options that reports and summaries advise. Oracle: their exit code when they are executed.

A model is made, what is advised about it is collected from all that is printed, and each is run: a command as
it stands, an option beside those that made the model, or in place of ``--config`` where it says so. A target
of outputs may be out of reach, which is said so; nothing that is advised may be refused.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import tunable
from transforms.compare import compare_models
from transforms.compare.measure_run import Costs, Measurement
from transforms.run.turns import Timing
from transforms.scheme.presets import PRESETS
from transforms.scheme.targets import TARGETS

COMMAND = re.compile(r"python -m tools\.(\w+) (.*)")
OPTION = re.compile(r"(--[a-z0-9_-]+)(?: ([A-Za-z0-9_.=-]*[A-Za-z0-9_]))?")
BEYOND = ("only with every layer", "cannot be met", "cannot show the target")
COST = Measurement(1.0, Timing(1.0, 1.0, 1.0, 1), None)
DATA = ("--data", "data")
PERCENTILE = ("--calibrate-method", "Percentile")
DEFAULT = (
    ("--config", "W4"),
    ("--config", "W8", "--matmul-nbits", "--set", "block_size=16"),
    ("--config", "A8W8"),
    ("--config", "W4A8"),
    ("--target", "ort-cpu", "--no-time"),
)
OTHERS = (
    *(("--config", name) for name in PRESETS if ("--config", name) not in DEFAULT),
    *(("--target", name) for name in TARGETS),
    *(("--config", "A8W8", "--target", name) for name in ("ort-cpu", "tensorrt", "openvino")),
    *(("--config", name, "--storage", "packed") for name in ("MX4", "MX6", "BFP16", "BF16_MIXED_BFP16")),
    ("--config", "own.toml"),
    ("--config", "A8W8", "--keep-weight-nodes"),
    ("--config", "A8W8", "--set", "block_size=16", "--no-per-channel"),
    (
        "--config",
        "A8W8",
        "--exclude-node",
        "dense",
        "--set",
        "percentile=99.9",
        "--calibrate-method",
        "Percentile",
    ),
    ("--config", "XINT8", "--input-shape", "x:2,3,8,8"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare_models, "measure_both", lambda *_: Costs(COST, COST, COST.run))
    model = tunable.conv_net()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2  # as some targets need it
    del model.graph.value_info[:]
    onnx.save(onnx.shape_inference.infer_shapes(model), "m.onnx")
    Path("data").mkdir()
    for i, sample in enumerate(tunable.samples(model, 8)):
        np.savez(f"data/{i}.npz", **{name: array[:2] for name, array in sample.items()})
    Path("own.toml").write_text('preset = "W4"\nblock_size = 16\n', encoding="utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], tool: str, words: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of a tool, and all that it prints."""
    try:
        code = importlib.import_module(f"tools.{tool}").main(list(words))
    except SystemExit as end:
        code = int(str(end.code))
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def advised(text: str, made: Sequence[str], config: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield what is advised, as a tool and its words; ``config``: those that chose the scheme."""
    for line in text.splitlines():
        if line.endswith(" prints them"):
            continue
        if found := COMMAND.search(line):
            yield found[1], shlex.split(found[2])
            continue
        for option, value in OPTION.findall(line):
            kept = [word for word in made if word not in config] if "place of --config" in line else made
            kept = kept[:4] if " makes about " in line else kept
            if option != "--config" or value:
                yield "quantize", [*kept, option, *([value] if value else [])]


@pytest.mark.parametrize(
    "options",
    [*DEFAULT, *(pytest.param(one, marks=pytest.mark.heavy) for one in OTHERS)],
    ids=" ".join,
)
def test_advice_is_taken(options: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["--input", "m.onnx", "--output", "q.onnx", *options, *DATA]
    code, text = run(capsys, "quantize", [*made, "--force", "--no-time"])
    if code:
        pytest.skip(text.strip())
    code, report = run(
        capsys,
        "report",
        ["--float", "m.onnx", "--quantized", "q.onnx", "--output", "r.html", *DATA, "--force"],
    )
    assert code == 0, report
    found = [one for said in (report, text) for one in advised(said, made, options[:2])]
    assert found
    for tool, words in found:
        more = ["--force"] if tool == "finetune" else ["--force", "--no-time"]
        code, said = run(capsys, tool, [*words, *more])
        assert code in (0, 3) or any(words in said for words in BEYOND), (tool, words, said)
