"""Gates on a metric. Oracle: the file itself, run by ONNX Runtime on the samples that were held out."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import onnx_narrow
from tests.helpers import build
from transforms.judge.sample_roles import goal_judging

MODEL = Path("tests/examples/digits.onnx").resolve()
IMAGES = np.load("tests/examples/digits_test_images.npy")[:64]
LABELS = np.load("tests/examples/digits_test_labels.npy")[:64]
HELD_OUT = goal_judging(len(IMAGES), 2)

ACCURACY = f"""
import numpy
labels = numpy.array({LABELS.tolist()})
def accuracy(outputs, places):
    return [float(next(iter(one.values())).argmax() == labels[place]) for one, place in zip(outputs, places)]
def exact(outputs, expected):
    pairs = [(a[name], b[name]) for a, b in zip(outputs, expected) for name in a]
    return [float((a == b).all()) for a, b in pairs]
"""

Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Run a tool in a folder with samples and a metric; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for place, image in enumerate(IMAGES):
        np.save(tmp_path / "data" / f"{place:03d}.npy", image[None])
    (tmp_path / "metric.py").write_text(ACCURACY)

    def _run(name: str, words: str) -> tuple[int, str, str]:
        code = importlib.import_module(f"tools.{name}").main(words.split())
        return code, *capsys.readouterr()

    return _run


def outputs(path: Path | str) -> np.ndarray:
    session = ort.InferenceSession(str(path))
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: image[None]})[0] for image in IMAGES])


def metadata(path: str) -> dict[str, object]:
    entries = {one.key: one.value for one in onnx.load(path).metadata_props}
    found: dict[str, object] = json.loads(entries["onnx_narrow.metric"])
    return found


JOBS = {
    "quantize": f"--input {MODEL} --config A8W8 --no-time",
    "auto_mixed_precision": f"--input {MODEL} --config A16W8 --target int8 --sqnr-drop-target 9 --no-time",
    "convert_fp32_to_bf16": f"--input {MODEL} --no-time",
    "finetune": f"--float {MODEL} --quantized q.onnx --no-time",
}


@pytest.mark.parametrize("name", JOBS)
def test_the_metric_of_the_file_is_that_of_samples_that_were_held_out(name: str, tool: Tool) -> None:
    if name == "finetune":
        onnx_narrow.quantize(MODEL, "q.onnx", config="A8W8", data=[one[None] for one in IMAGES], fast=True)
    gate = "--metric metric.py:accuracy --max-loss 0.1"
    code, _, errors = tool(name, f"{JOBS[name]} --output o.onnx --data data {gate}")
    assert code == 0, errors
    floats, found = (outputs(path)[HELD_OUT].argmax(1) == LABELS[HELD_OUT] for path in (MODEL, "o.onnx"))
    entry = metadata("o.onnx")
    assert entry["name"] == "loss of metric.py:accuracy" and entry["bound"] == "at most 0.1"
    assert entry["value"] == pytest.approx(floats.mean() - found.mean()) and entry["samples"] == len(HELD_OUT)
    assert len(str(entry["samples_sha256"])) == 64
    low, high = entry["interval"]  # type: ignore[misc]
    assert low <= entry["value"] <= high <= 0.1  # type: ignore[operator]


@pytest.mark.parametrize("name", JOBS)
def test_a_metric_that_no_choice_keeps_to_ends_with_3_and_no_file(name: str, tool: Tool) -> None:
    if name == "finetune":
        onnx_narrow.quantize(MODEL, "q.onnx", config="A8W8", data=[one[None] for one in IMAGES], fast=True)
    gate = "--metric metric.py:exact --max-loss 0.1"
    if name == "quantize":  # all layers in float would be exact
        gate += " --fallback int16"
    code, printed, errors = tool(name, f"{JOBS[name]} --output o.onnx --data data {gate}")
    said = errors.splitlines()[-1]
    assert code == 3 and not Path("o.onnx").exists() and "Size" not in printed
    assert "loss of metric.py:exact" in said and "at most 0.1" in said
    assert "most of the error comes from '" in said or "with every node in float32" in said


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(1, 20))])
def test_what_the_float_model_itself_misses_is_refused_at_once(seed: int, tmp_path: Path) -> None:
    some = np.random.default_rng(seed).permutation(len(IMAGES))[:16]
    out, data = tmp_path / "o.onnx", [IMAGES[place][None] for place in some]
    with pytest.raises(ValueError, match=r"^worse\(\) .* at least 2, and no layer is at fault$") as caught:
        onnx_narrow.quantize(MODEL, out, config="A8W8", data=data, metric=worse, min_metric=2, time=False)
    assert type(caught.value).__name__ == "GateError" and not out.exists()


def worse(outputs: list[dict[str, np.ndarray]]) -> float:
    return float(np.mean([np.ptp(one["logits"]) > 0 for one in outputs]))


def test_layers_in_float_repair_what_the_metric_misses(tmp_path: Path) -> None:
    """A quantized model at 20 dB cannot keep to 30; with layers in float it does, on held-out samples."""
    data = [one[None] for one in IMAGES]
    given = {"config": "A8W8", "data": data, "time": False}

    def _decibels(outputs: list, expected: list) -> list[float]:  # type: ignore[type-arg]
        pairs = [(one["logits"], other["logits"]) for one, other in zip(outputs, expected, strict=True)]
        errors = [float(np.sum((e - o) ** 2) / np.sum(e**2)) for o, e in pairs]
        return [-10 * np.log10(max(error, 1e-9)) for error in errors]

    plain = onnx_narrow.quantize(MODEL, metric=_decibels, min_metric=1, **given)  # type: ignore[arg-type]
    assert plain.metric is not None and plain.metric.samples == len(HELD_OUT)
    wanted = plain.metric.value + 3
    found = onnx_narrow.quantize(MODEL, metric=_decibels, min_metric=wanted, **given)  # type: ignore[arg-type]
    assert found.metric is not None and found.metric.interval[0] >= wanted
    assert any(line.startswith("In float32: ") for line in found.notes)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--metric top1 --data data", "--metric requires --min-metric or --max-loss"),
        ("--min-metric 1 --data data", "--min-metric requires --metric"),
        ("--metric top1 --min-metric 1", "--metric requires --data"),
        (
            "--metric top1 --min-metric 1 --max-loss 1 --data data",
            "--min-metric and --max-loss cannot be combined",
        ),
        (
            "--metric sqnr --min-metric 9 --min-sqnr 9 --data data",
            "--min-sqnr and --min-metric cannot be combined",
        ),
        ("--metric sqnr --max-loss 9 --data data", "--metric sqnr requires --min-metric: the float model"),
    ],
)
def test_options_that_do_not_go_together(
    words: str, error: str, tool: Tool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        tool("quantize", f"{JOBS['quantize']} --output o.onnx {words}")
    assert left.value.code == 2 and error in capsys.readouterr().err


@pytest.fixture
def spread(tool: Tool) -> Tool:
    """Quantize a model that few bits ruin: a Mul spreads channels over e^8 before its second product.

    Beside its three products the Mul is a layer; without these, nothing in the model is in low precision.
    """
    random = np.random.default_rng(5)
    sizes = {"w1": (32, 32), "w2": (32, 32), "w3": (32, 10)}
    weights = {name: random.standard_normal(size, np.float32) for name, size in sizes.items()}
    weights["scales"] = np.exp(2 * random.standard_normal(32)).astype(np.float32)
    steps = ("MatMul x w1", "Relu a", "Mul b scales", "MatMul c w2", "Relu d", "MatMul e w3")
    nodes = [
        helper.make_node(op, inputs, [output], f"{op}_{output}")
        for (op, *inputs), output in zip(map(str.split, steps), "abcdey", strict=True)
    ]
    ends = build.value("x", ["n", 32]), build.value("y", ["n", 10])
    build.save(build.model(nodes, [ends[0]], [ends[1]], weights), Path("spread.onnx"))
    Path("rows").mkdir()
    for place in range(64):
        row = np.random.default_rng(place).standard_normal((1, 32), np.float32)
        np.save(f"rows/{place:02d}.npy", row)
    return lambda words: tool(
        "quantize", f"--input spread.onnx --output o.onnx --data rows --no-time {words}"
    )


def sqnr_of_spread() -> float:
    """Return the SQNR of the written model on the samples that were held out, all outputs together."""
    rows = np.concatenate([np.load(f"rows/{place:02d}.npy") for place in goal_judging(64, 2)])
    runs = [ort.InferenceSession(path).run(None, {"x": rows})[0] for path in ("spread.onnx", "o.onnx")]
    signal, noise = (np.sum(np.square(array, dtype=np.float64)) for array in (runs[0], runs[0] - runs[1]))
    return float(10 * np.log10(signal / noise))


IN_FLOAT_ALONE = {
    "--config W4A8 --metric top1 --max-loss 0.05": "most of the error comes from '",
    "--config U8S8 --metric sqnr --min-metric 90": "is not met in 0.9 of the bytes of the float model",
    "--config W4A8 --min-sqnr 90": "only with every layer in float32",
}


@pytest.mark.parametrize("words", IN_FLOAT_ALONE)
def test_a_model_in_float_alone_is_not_written(words: str, spread: Tool) -> None:
    code, printed, errors = spread(words)
    assert code == 3 and not Path("o.onnx").exists() and "Size" not in printed
    assert IN_FLOAT_ALONE[words] in errors.splitlines()[-1]


@pytest.mark.parametrize("goal", ["--metric sqnr --min-metric 90", "--min-sqnr 90"])
def test_a_goal_that_may_be_missed_takes_the_best_model_in_low_precision(goal: str, spread: Tool) -> None:
    code, printed, errors = spread(f"--config W4A8 {goal} --allow-miss")
    assert code == 0, errors
    (said,) = re.findall(r"^Target of at least 90 dB: missed, sqnr ([\d.]+) dB -> ", printed, re.MULTILINE)
    assert "In float32: " in printed
    operators = {node.op_type for node in onnx.load("o.onnx").graph.node}
    assert operators & {"QuantizeLinear", "DequantizeLinear"}
    entry = metadata("o.onnx")
    assert entry["name"] == "sqnr" and entry["bound"] == "at least 90 dB"
    assert float(said) < entry["value"] < 90, "layers in float are better than none"  # type: ignore[operator]
    if "metric" in goal:
        assert entry["value"] == pytest.approx(sqnr_of_spread(), abs=0.05)


def test_what_is_met_is_not_said_to_be_missed(spread: Tool) -> None:
    code, printed, errors = spread("--config A8W8 --min-sqnr 5 --allow-miss")
    assert code == 0 and "Target of at least 5 dB: sqnr " in printed, errors


def test_a_loss_of_0_is_no_bound(tool: Tool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        tool("quantize", f"{JOBS['quantize']} --output o.onnx --data data --metric top1 --max-loss 0")
    assert left.value.code == 2 and "--max-loss 0 is no bound" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"^max_loss=0 is no bound"):
        onnx_narrow.quantize(MODEL, config="A8W8", data=[IMAGES[:1]] * 8, metric="top1", max_loss=0)


def test_fewer_samples_than_can_be_held_out_are_refused(tool: Tool) -> None:
    gate = "--metric top1 --min-metric 0.5 --limit 3"
    code, _, errors = tool("quantize", f"{JOBS['quantize']} --output o.onnx --data data {gate}")
    assert code == 1 and "metric top1: 3 samples, too few to hold any out: give four or more" in errors


def test_evaluate_tells_a_metric_of_results(tool: Tool) -> None:
    onnx_narrow.quantize(MODEL, "q.onnx", config="A8W8", data=[one[None] for one in IMAGES], fast=True)
    for model, folder in ((MODEL, "a"), ("q.onnx", "b")):
        assert tool("infer", f"--input {model} --output {folder} --data data")[0] == 0
    run = "--baseline_results_folder a --quantized_results_folder b"
    code, printed, errors = tool("evaluate", f"{run} --metric metric.py:accuracy --json f.json")
    value = (outputs("q.onnx").argmax(1) == LABELS).mean()
    assert code == 0, errors
    assert f"Metric: metric.py:accuracy {value:.4g} (" in printed and "on 64 samples\n" in printed
    assert json.loads(Path("f.json").read_text())["metric"]["value"] == pytest.approx(value)
    code, _, errors = tool("evaluate", f"{run} --metric metric.py:exact --min-metric 0.5")
    assert code == 3 and "metric is missed: metric.py:exact 0 (" in errors
