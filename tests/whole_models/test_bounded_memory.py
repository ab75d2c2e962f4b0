"""Memory that a conversion takes does not grow with the model: the peak of fresh processes is measured.

Oracle: the bound, which is the peak of the same tool on a model of the same nodes and small weights, and four
times the largest tensor.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.benchmarks.bench_scale import network, write_images
from tests.benchmarks.large_models import SparseBuilder, write_sparse
from tests.benchmarks.transformer import IR_VERSION, OPSET, Size
from tests.helpers.peak_memory import anonymous_peak
from tools import quantize

LARGE = Size(layers=4, width=1024, heads=8, vocabulary=4000)  # 220 MB, sparse on disk
SMALL = dataclasses.replace(LARGE, width=64, vocabulary=500)
LARGEST = 4 * 4 * LARGE.width**2  # bytes of the largest tensor
SLACK = 24 << 20
NO_COPIES = "from transforms.runtime import session; session._MOST_COPIED = 0; "
NO_COSTS = (
    "from transforms.compare import compare_models as c, measure_run as m; "
    "one = m.Timing(1.0, 1.0, 1.0, 1); "
    "c.measure_both = lambda *_: m.Costs(*2 * (m.Measurement(1.0, one, None),), one); "
)
NO_RUN = "from transforms.pipelines import one_step; one_step.MEMORY = 0; "
"""A first run takes what a session takes, which the weights decide."""
NO_BUILDS = "from transforms.judge import constants; constants.MOST_WEIGHTS = 0; "
"""As of a model that is too large to be built with other presets, to say which of them is smaller."""

IN_PLACE = "from transforms.model import read_model; read_model.IN_PLACE = 0; "

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[Size, Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = {size: folder / f"{size.width}.onnx" for size in (LARGE, SMALL)}
    for size, path in paths.items():
        write_sparse(path, size)
    return paths


def peak(tool: tuple[str, ...], path: Path, folder: Path, before: str = "") -> int:
    name, *options = tool
    run = f"{NO_RUN}{before}from tools.{name} import main; import sys; sys.exit(main(sys.argv[1:]))"
    target = folder / "result.onnx"
    found = anonymous_peak(["-c", run, *options, "--input", str(path), "--output", str(target), "--force"])
    for file in folder.glob("result.onnx*"):
        file.unlink()
    return found


TOOLS = (
    ("convert_fp32_to_bf16", "--format", "with_cast"),
    pytest.param(
        ("convert_fp32_to_bf16", "--format", "customqdq", "--save_as_external_data"), marks=pytest.mark.heavy
    ),
    pytest.param(("quantize", "--config", "BFP16", "--save_as_external_data"), marks=pytest.mark.heavy),
)


@pytest.mark.heavy
@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_weights_are_in_memory_one_at_a_time(
    models: dict[Size, Path], tmp_path: Path, tool: tuple[str, ...]
) -> None:
    """Oracle: the bound of this file."""
    bound = peak(tool, models[SMALL], tmp_path, NO_BUILDS) + 4 * LARGEST + SLACK
    assert peak(tool, models[LARGE], tmp_path, NO_BUILDS) <= bound


@pytest.mark.heavy
def test_ranges_that_are_known_need_no_run(models: dict[Size, Path], tmp_path: Path) -> None:
    """Oracle: the bound of this file, for a second run with the ranges that the first has stored."""
    data = tmp_path / "data"
    data.mkdir()
    feed = {name: np.ones((1, 4), np.int64) for name in ("input_ids", "attention_mask")}
    np.savez(data / "sample.npz", **feed)
    peaks = {}
    for size in (SMALL, LARGE):
        cache = tmp_path / f"{size.width}.json"
        tool = (
            "quantize",
            "--config",
            "W4A8",
            "--fast",
            "--data",
            str(data),
            "--calibration-cache",
            str(cache),
        )
        peak(tool, models[size], tmp_path)
        peaks[size] = peak(tool, models[size], tmp_path)
    assert peaks[LARGE] <= peaks[SMALL] + 4 * LARGEST + SLACK


@pytest.mark.heavy
def test_a_model_in_one_file_is_read_in_place(models: dict[Size, Path], tmp_path: Path) -> None:
    """Oracle: the bound of this file."""
    tool = ("convert_fp32_to_bf16", "--format", "with_cast")
    whole = tmp_path / "whole.onnx"
    onnx.save(onnx.load(models[LARGE]), whole)
    bound = peak(tool, models[SMALL], tmp_path) + 4 * LARGEST + SLACK
    assert peak(tool, whole, tmp_path, IN_PLACE) <= bound


def run_peak(tool: str, *options: str | Path, before: str = "") -> int:
    run = f"{NO_COPIES}{before}from tools.{tool} import main; import sys; sys.exit(main(sys.argv[1:]))"
    return anonymous_peak(["-c", run, *map(str, options), "--force"])


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    feed = {name: np.ones((1, 4), np.int64) for name in ("input_ids", "attention_mask")}
    np.savez(folder / "0.npz", **feed)
    return folder


@pytest.mark.heavy
def test_results_of_a_large_model(models: dict[Size, Path], samples: Path, tmp_path: Path) -> None:
    """Oracle: the bound of this file, of a model that is large by a limit of 0 in place of 2 GiB."""
    peaks = {
        size: run_peak("infer", "--input", path, "--output", tmp_path / "found", "--data", samples)
        for size, path in models.items()
    }
    assert peaks[LARGE] <= peaks[SMALL] + LARGEST + SLACK


@pytest.mark.heavy
@pytest.mark.parametrize("config", ["A8W8", "BF16"])
def test_report_on_a_large_model(
    models: dict[Size, Path], samples: Path, tmp_path: Path, config: str
) -> None:
    """Oracle: that of results; weights of the two models are compared one after the other.

    Time and memory of the models, measured in other processes, are left out.
    """
    peaks = {}
    for size, path in models.items():
        quantized, page = tmp_path / f"{size.width}.onnx", tmp_path / "report.html"
        data = ("--data", str(samples), "--fast") if config == "A8W8" else ()
        options = ["--config", config, "--save_as_external_data", *data]
        assert quantize.main(["--input", str(path), "--output", str(quantized), *options]) == 0
        given = ("--float", path, "--quantized", quantized, "--data", samples, "--output", page)
        peaks[size] = run_peak("report", *given, before=NO_COSTS)
    assert peaks[LARGE] <= peaks[SMALL] + 6 * LARGEST + SLACK


def write_pair(path: Path, width: int, hidden: int) -> None:
    """Write two products with a Tanh between them, weights beside the model, and a sample in ``data``."""
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        builder = SparseBuilder(np.random.default_rng(0), file=file, location=data.name)
        inner = builder.node("MatMul", "up", "x", builder.normal("up.weight", width, hidden))
        inner = builder.node("Tanh", "tanh", inner)
        end = builder.node("MatMul", "down", inner, builder.normal("down.weight", hidden, width))
        file.truncate(builder.end)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, width]) for name in ("x", end)]
    graph = helper.make_graph(builder.nodes, "pair", ends[:1], ends[1:], builder.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.save(model, path)
    (path.parent / "data").mkdir()
    np.savez(
        path.parent / "data" / "0.npz", x=np.random.default_rng(0).standard_normal((1, 4, width), np.float32)
    )


@pytest.mark.heavy
def test_large_samples_are_calibrated_and_compared_in_bounded_memory(tmp_path: Path) -> None:
    """Beyond a plain run a fifth of the activations, two tensors and 200 MB at most, choices included.

    Six tensors of 16 channels; each sample's output alone takes 38 MB. Candidates have a tensor as it is and
    a rounded one until a switch chooses between both.
    """
    side = 768
    onnx.save(network(side), tmp_path / "float.onnx")
    write_images(tmp_path / "data", 4, (3, side, side))
    run = (
        "import sys, numpy, onnxruntime; "
        "session = onnxruntime.InferenceSession(sys.argv[1]); "
        "session.run(None, {'x': numpy.load(sys.argv[2])['x']})"
    )
    plain = anonymous_peak(["-c", run, str(tmp_path / "float.onnx"), str(tmp_path / "data" / "0000.npz")])
    tensor = 16 * side**2 * 4
    tool = ("quantize", "--config", "A8W8", "--data", str(tmp_path / "data"))
    assert peak(tool, tmp_path / "float.onnx", tmp_path) <= plain + 6 * tensor // 5 + 2 * tensor + 200_000_000
