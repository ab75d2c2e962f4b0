"""Automatic mixed precision by traced sensitivities, which are the default, from the command line.

Oracles: ONNX Runtime on the file that is written, and sensitivities measured layer by layer.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.helpers import build, mixing, tunable
from tests.helpers.rank_correlation import spearman
from tools import auto_mixed_precision
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.mix_precision import mix
from transforms.mix_precision.evaluation import MixingOptions
from transforms.mix_precision.sensitivity import Sensitivity
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme, preset
from transforms.search.output_metrics import METRICS

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of the network for digits and 4 batches of images."""
    images = np.load(EXAMPLES / "digits_test_images.npy").reshape(12, 30, 1, 8, 8)
    shutil.copy(EXAMPLES / "digits.onnx", tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, batch in enumerate(images[:4]):
        np.savez(tmp_path / "data" / f"{i}.npz", images=batch)
    return tmp_path


def feeds_of(folder: Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(path)) for path in sorted((folder / "data").iterdir())]


def run(folder: Path, config: str, *more: str, output: str | None = "mixed.onnx") -> int:
    given = ["--input", str(folder / "float.onnx"), "--config", config, "--data", str(folder / "data")]
    given += ["--output", str(folder / output)] if output else ["--analyze-only"]
    return auto_mixed_precision.main([*given, *more])


def score(folder: Path, metric: str) -> float:
    made = []
    for name in ("float.onnx", "mixed.onnx"):
        model = open_model(folder / name, RunOptions())
        made.append([model.run(feed) for feed in feeds_of(folder)])
    return METRICS[metric].score(zip(*made, strict=True))


@pytest.mark.parametrize(
    ("config", "options", "least"),
    [
        ("A16W8", ["--target", "int8", "--sqnr-target", "30"], 30),
        ("BF16", ["--target", "mx6", "--target", "bfp16", "--sqnr-target", "33"], 33),
        ("A8W8", ["--weight-target", "int4", "--strategy", "quality", "--sqnr-target", "20"], 20),
    ],
)
def test_the_target_holds_for_the_file_and_the_table_says_how(
    folder: Path, config: str, options: list[str], least: float, capsys: pytest.CaptureFixture[str]
) -> None:
    table = folder / "table.json"
    assert run(folder, config, *options, "--json", str(table)) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Sensitivity (trace): sqnr dB with that layer alone in a format\n")
    assert not said.err
    true = score(folder, "sqnr")
    assert true >= least
    found = re.search(r"^sqnr: .* -> (\S+) dB, the target is at least", said.out, re.M)
    assert found is not None and float(found[1]) == float(f"{true:.6g}")
    damages = json.loads(table.read_text())
    assert (damages["method"], damages["metric"], damages["samples"]) == ("trace", "sqnr", 4)
    nodes = onnx.load(folder / "float.onnx").graph.node
    layers = {node.name for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")}
    assert {one["layer"] for one in damages["damages"]} == layers
    for one in damages["damages"]:
        assert one["layer"] in said.out and f"{one['value']:.6g}" in said.out


def test_a_second_run_does_not_trace_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    trace = mix.trace_sensitivity

    def _counted(*given: Any, **options: Any) -> Sensitivity:
        calls.append(1)
        return trace(*given, **options)

    monkeypatch.setattr(mix, "trace_sensitivity", _counted)
    first, second = (["--json", str(folder / f"{i}.json"), "--resume", str(folder / "kept")] for i in "12")
    rule = ["--target", "mx6", "--sqnr-target", "25"]
    assert run(folder, "BF16", *rule, *first) == 0
    assert run(folder, "BF16", *rule, *second, output="second.onnx") == 0
    assert len(calls) == 1
    assert (folder / "1.json").read_bytes() == (folder / "2.json").read_bytes()
    assert onnx.load(folder / "mixed.onnx").graph == onnx.load(folder / "second.onnx").graph
    for i, other in enumerate((["--target", "mx9"], ["--data-size", "3"], ["--exclude-node", "conv1"]), 2):
        assert run(folder, "BF16", *rule, *other, *first[2:], output=f"{i}.onnx") == 0
        assert len(calls) == i
    measured = ["--sensitivity", "measured"]
    assert run(folder, "BF16", *rule, *measured, *first[2:], output="measured.onnx") == 0
    assert len(calls) == 4


def found(model: onnx.ModelProto, scheme: Scheme, source: Any, threads: int = 1) -> Sensitivity:
    options = MixingOptions(run=RunOptions(threads=threads), analyse_only=True)
    data = CalibrationData(source)
    sensitivity = mix.mix_precision(model_io.load(model), scheme, data, options).sensitivity
    assert sensitivity is not None
    return sensitivity


CONV = tunable.conv_net()


def test_samples_as_a_list_and_as_a_folder_and_any_number_of_threads(tmp_path: Path) -> None:
    feeds = tunable.samples(CONV, 5)
    for i, feed in enumerate(feeds):
        np.savez(tmp_path / f"{i}.npz", **feed)  # type: ignore[arg-type]
    scheme = preset("BF16").with_(auto_mixed_precision={"target": ["mx6", "bfp16"]})
    first = found(CONV, scheme, feeds)
    assert first.method == "trace"
    assert found(CONV, scheme, tmp_path) == first
    assert found(CONV, scheme, iter(feeds)) == first
    assert found(CONV, scheme, feeds, threads=2) == first


@pytest.mark.parametrize("name", ["BF16", "A16W8"])
def test_layers_are_ranked_as_measurements_rank_them(name: str) -> None:
    model = many_layers()
    feeds = [{"x": mixing.normal(4, 16, seed=i)} for i in range(8)]
    target = ["mx6", "bfp16"] if name == "BF16" else ["int8", "int8/int4"]
    rules = ({"target": target}, {"target": target, "sensitivity": "measured"})
    tables = [found(model, preset(name).with_(auto_mixed_precision=rule), feeds) for rule in rules]
    assert [one.method for one in tables] == ["trace", "measured"]
    assert spearman(*tables) >= 0.8


def many_layers() -> onnx.ModelProto:
    """Return x [4, 16] through 6 layers between Relus, each added to what it reads in a share of its own."""
    nodes, weights, read = [], {}, "x"
    for i, share in enumerate((0.3, 2.0, 0.05, 0.8, 0.15, 1.2)):
        weights[f"w{i}"] = np.float32(share) * mixing.normal(16, 16, seed=20 + i)
        made = "y" if i == 5 else f"s{i}"
        nodes += [
            onnx.helper.make_node("MatMul", [read, f"w{i}"], [f"m{i}"], f"layer{i}"),
            onnx.helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"relu{i}"),
            onnx.helper.make_node("Add", [read, f"r{i}"], [made], f"add{i}"),
        ]
        read = made
    return build.model(nodes, [build.value("x", [4, 16])], [build.value("y", [4, 16])], weights)


def test_float16_outputs_are_traced_in_front_of_their_cast() -> None:
    """Oracle: the same network in float32, whose harms differ by what float16 rounds: parts in a thousand."""
    random = np.random.default_rng(5)
    weights = [random.standard_normal((16, 16)).astype(np.float16) for _ in range(2)]
    x = random.standard_normal((8, 16)).astype(np.float16)
    harms = []
    for kind, dtype in (("float16", np.float16), ("float", np.float32)):
        model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]> g ({kind}[8,16] x) =>
            ({kind}[8,16] y) {{ a = MatMul(x, v) b = Relu(a) y = MatMul(b, w) }}""")
        for name, weight in zip("vw", weights, strict=True):
            model.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(dtype), name))
        scheme = preset("BF16").with_(auto_mixed_precision={"target": "mx6"})
        data = CalibrationData([{"x": x.astype(dtype)}])
        found = mix.mix_precision(model_io.load(model), scheme, data).sensitivity
        assert found is not None and found.method == "trace"
        harms.append([damage.harm for damage in found.damages])
    assert len(harms[0]) == 2
    np.testing.assert_allclose(harms[0], harms[1], rtol=0.05)
