"""Oracles: the Python call behind the tool, the float model, and files as they were before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from PIL import Image

from onnx_narrow.api.quantize_work import asked_scheme
from tests.helpers import build, conversion, corpus, plans
from tests.helpers.quantization import random, stored
from tests.helpers.spread import spread
from tools import quantize
from tools.cli.job import parse
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.functions.attach_functions import attach_functions
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.events import SILENT
from transforms.scheme import Scheme, preset, read_scheme
from transforms.scheme.presets import PLAIN

FOLDED = {"fold_relu": True}
RANDOM = "Warning: ranges come from random numbers; the result shows that the model runs, not its accuracy\n"
ROOT = Path(__file__).resolve().parents[2]


class EvaluationSet:
    """A folder with the model ``layers`` of the corpus, a folder of samples, and a place for the result."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capture = folder, capture
        self.source, self.target, self.data = folder / "m.onnx", folder / "q.onnx", folder / "data"
        self.data.mkdir()
        self.feeds = [{"x": random(3, 4, seed=i)} for i in range(4)]
        for i, feed in enumerate(self.feeds):
            np.save(self.data / f"{i}.npy", feed["x"])
        onnx.save(corpus.build("layers"), self.source)

    def quantize(self, config: object, *options: object, code: int = 0) -> tuple[str, str]:
        """Run the tool, assert its exit code, and return what it prints to stdout and stderr."""
        paths = ["--input", self.source, "--output", self.target, "--config", config]
        assert self.run(*paths, *options) == code
        return self.printed()

    def run(self, *arguments: object) -> int:
        return quantize.main([str(argument) for argument in arguments])

    def printed(self) -> tuple[str, str]:
        out, err = self._capture.readouterr()
        return out, err

    def with_data(self, config: object, *options: object) -> tuple[str, str]:
        return self.quantize(config, "--data", self.data, *options)

    def result(self) -> onnx.ModelProto:
        onnx.checker.check_model(str(self.target), full_check=True)
        return onnx.load(self.target)

    def scheme(self) -> Scheme:
        """Return the scheme that the result says it was made with."""
        properties = {entry.key: entry.value for entry in self.result().metadata_props}
        path = self.folder / "found.toml"
        path.write_text(properties["onnx_narrow.scheme"], encoding="utf-8")
        return read_scheme(path)

    def toml(self, text: str) -> Path:
        path = self.folder / "scheme.toml"
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> EvaluationSet:
    return EvaluationSet(tmp_path, capsys)


def called(bench: EvaluationSet, chosen: Scheme) -> bytes:
    """Return what the Python call makes of the same model and data, without metadata."""
    graph = model_io.load(bench.source)
    quantize_graph(graph, chosen, CalibrationData(bench.feeds))
    model = graph_proto.export_model(graph)
    attach_functions(model)
    return bare(model)


def bare(model: onnx.ModelProto) -> bytes:
    """Return a model's bytes without metadata, and without a word of where its weights were."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.metadata_props[:]
    for tensor in copy.graph.initializer:
        tensor.ClearField("data_location")
    return copy.SerializeToString(deterministic=True)


def as_asked(found: Scheme, asked: Scheme) -> Scheme:
    """Return a recorded scheme with what the outputs decided put back."""
    decided = "keep_float", "move_outliers", "fit_weights"
    found = found.with_(**{key: getattr(asked, key) for key in decided})
    if not asked.is_open:
        return found
    ranges = "calibrate_method", "calibrate_tensors", "correct_biases"
    keys = [*ranges, "per_channel", "weight_method", "equalize_layers", "tensors"]
    return found.with_(**{key: getattr(asked, key) for key in keys})


# The result


TAKEN = tuple(name for name in PLAIN if name not in ("A8W8_DYNAMIC", "FOUND"))
"""Presets that take the small layers of the model, whose weights are on no grid."""


@pytest.mark.parametrize("name", spread(TAKEN, of=3))
def test_a_preset_writes_what_the_call_makes(name: str, bench: EvaluationSet) -> None:
    before = bench.source.read_bytes()
    bench.with_data(name, "--fast")
    assert bench.source.read_bytes() == before
    fast = preset(name).with_(move_outliers=False)
    assert bare(bench.result()) == called(bench, fast.by_rule())
    assert as_asked(bench.scheme(), fast) == fast and not bench.scheme().keep_float
    exact, found = (
        conversion.run(onnx.load(path), bench.feeds[0])["y"] for path in (bench.source, bench.target)
    )
    assert np.abs(found - exact).max() < 0.5 * np.abs(exact).max() and np.isfinite(found).all()
    assert sorted(path.name for path in bench.folder.iterdir()) == ["data", "found.toml", "m.onnx", "q.onnx"]


@pytest.mark.parametrize("name", spread(TAKEN, of=3))
def test_a_second_run_says_that_there_is_nothing_to_do(name: str, bench: EvaluationSet) -> None:
    bench.with_data(name)
    again = ["--input", bench.target, "--output", bench.folder / "again.onnx", "--config", name]
    assert bench.run(*again, "--data", bench.data) == 1
    error = bench.printed()[1]
    assert error.startswith("tools.quantize: error: the model is quantized already: '")
    assert error.count("\n") == 1 and not (bench.folder / "again.onnx").exists()


@pytest.mark.parametrize(
    "text", ('activation = "float32"\nweight = "mx9"', 'preset = "BF16"\nbfloat16_as = "cast"')
)
def test_a_second_run_knows_models_without_nodes_of_ours(text: str, bench: EvaluationSet) -> None:
    bench.quantize(bench.toml(text))
    again = ["--input", bench.target, "--output", bench.folder / "again.onnx", "--config", "A8W8"]
    assert bench.run(*again, "--data", bench.data) == 1
    assert "the model is quantized already" in bench.printed()[1]


def test_fast_follows_the_rules(bench: EvaluationSet) -> None:
    """The graph of the scheme whose rules are written out, and these in the metadata."""
    for name in ("A8W8", "U8S8", "W4A8"):
        out, _ = bench.with_data(name, "--force", "--fast")
        assert "chosen by outputs" not in out
        assert bench.scheme() == preset(name).by_rule().with_(move_outliers=False)
        fast = bare(bench.result())
        assert fast == called(bench, preset(name).by_rule().with_(move_outliers=False))


def test_the_summary_says_what_was_chosen(bench: EvaluationSet) -> None:
    out, _ = bench.with_data("U8S8")
    assert "Kept: " in out or "Tried, not kept: " in out or "Decided by rule: " in out


def test_the_same_run_gives_the_same_bytes(bench: EvaluationSet) -> None:
    for name in ("A8W8", "MX9"):
        found = []
        for _ in range(2):
            bench.with_data(name, "--force")
            found.append(bench.target.read_bytes())
        assert found[0] == found[1]


def test_where_the_result_comes_from(bench: EvaluationSet) -> None:
    bench.with_data("A8W8", "--per-channel", "--exclude-op", "Gemm")
    properties = {entry.key: entry.value for entry in bench.result().metadata_props}
    assert properties["onnx_narrow.tool"] == "quantize"
    assert len(properties["onnx_narrow.source_sha256"]) == 64
    keys = '{"exclude_op_types": ["Gemm"], "per_channel": true}'
    options = f'{{"config": "A8W8", "keys": {keys}, "random_data": null}}'
    assert properties["onnx_narrow.options"] == options
    asked = preset("A8W8").with_(per_channel=True, exclude_op_types=("Gemm",))
    assert as_asked(bench.scheme(), asked) == asked
    assert not bench.scheme().is_open


@pytest.mark.parametrize("name", ("A8W8", "XINT8", "MX9"))
def test_weights_outside_the_model_file(name: str, bench: EvaluationSet) -> None:
    model, weights = build.dense(256), bench.folder / "w.bin"
    onnx.save(model, bench.source)
    for i in range(4):
        np.save(bench.data / f"{i}.npy", random(2, 256, seed=i))
    bench.with_data(name)
    expected = bare(bench.result())
    build.save_external(model, bench.source, weights.name)
    before = bench.source.read_bytes(), weights.read_bytes()
    bench.with_data(name, "--force", "--save_as_external_data")
    assert (bench.source.read_bytes(), weights.read_bytes()) == before
    (result,) = bench.folder.glob("q.onnx.*.data")
    functions = sum(one.ByteSize() for one in onnx.load(bench.target).functions)
    assert result.stat().st_size >= 256 * 256 > 10 * (bench.target.stat().st_size - functions)
    assert bare(bench.result()) == expected


@pytest.mark.parametrize("name", ("A8W8", "XINT8", "MX9", "FP16"))
def test_a_float16_model(name: str, bench: EvaluationSet) -> None:
    model = build.dense(4, layers=2, dtype=np.float16)
    onnx.save(model, bench.source)
    for i in range(4):
        np.save(bench.data / f"{i}.npy", bench.feeds[i]["x"].astype(np.float16))
    bench.with_data(name)
    feeds = {"x": bench.feeds[0]["x"].astype(np.float16)}
    exact, found = (conversion.run(one, feeds)["y"] for one in (model, bench.result()))
    assert found.dtype == np.float16
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()


def test_nothing_to_do(bench: EvaluationSet) -> None:
    onnx.save(corpus.parse("(int64[N] x) => (int64[N] y) { y = Neg(x) }"), bench.source)
    out, err = bench.quantize("A8W8", code=3)
    assert out == (
        f"Nothing to do: no tensor of '{bench.source}' can take a format of this scheme.\n"
        "  No node reads a float32 tensor\n  No preset would quantize any of it\n"
    )
    assert err == "" and not bench.target.exists()


@pytest.mark.parametrize(
    ("config", "reason"),
    (
        ("A8W8", "Without a dot product before them, where arithmetic in integers starts: Relu 1, Tanh 1"),
        ("BFP16", "No dot products, which alone read blocks: Relu 1, Tanh 1"),
    ),
)
def test_why_nothing_is_to_do(config: str, reason: str, bench: EvaluationSet) -> None:
    """The presets that are named do quantize the model."""
    onnx.save(corpus.parse("(float[N] x) => (float[N] y) { a = Relu(x) y = Tanh(a) }"), bench.source)
    out, _ = bench.quantize(config, code=3)
    every = "--set quantize_all_op_types=true"
    _, first, second = out.splitlines()
    assert (first, second) == (f"  {reason}", f"  Would quantize some of it: --config BF16, {every}")
    assert not bench.target.exists()
    bench.quantize("BF16")
    assert bench.target.exists()


def test_weights_in_a_body_are_offered_as_integers(bench: EvaluationSet) -> None:
    """A scheme that measures ranges has none inside an If; ``W8`` needs none."""
    bodies = "then_branch = a () => (float[4, 64] p) { p = MatMul(x, w) }"
    bodies += ", else_branch = b () => (float[4, 64] q) { q = Identity(x) }"
    text = f"(bool c, float[4, 64] x) => (float[4, 64] y) {{ y = If (c) <{bodies}> }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> main {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    onnx.save(model, bench.source)
    out, _ = bench.quantize("A8W8", code=3)
    assert "Would quantize some of it: --config W8, --config BFP16, " in out
    bench.quantize("W8")
    assert bench.target.exists()


@pytest.mark.parametrize(
    "text",
    (
        "(float[4, 4] x) => (uint8[4, 4] y) { y, s, z = DynamicQuantizeLinear(x) }",
        "(uint8[4, 4] x, int8[4, 4] w) => (int32[4, 4] y) { y = MatMulInteger(x, w) }",
        "(uint8[1, 1, 4, 4] x, int8[1, 1, 2, 2] w) => (int32[N, C, H, W] y) { y = ConvInteger(x, w) }",
    ),
)
def test_models_in_integers_are_recognised(text: str, bench: EvaluationSet) -> None:
    onnx.save(corpus.parse(text), bench.source)
    _, err = bench.quantize("BFP16", code=1)
    assert "the model is quantized already: 'y' is a " in err


# The summary


def test_the_summary_of_integers(bench: EvaluationSet) -> None:
    out, err = bench.with_data("A8W8", "--set", "keep_float=false")
    assert err == ""
    sizes = bench.source.stat().st_size, bench.target.stat().st_size
    lines = out.splitlines()
    assert "Quantized to int8: 3 activations" in lines and "Quantized to uint8: 2 weights" in lines
    assert "Quantized to int32: 2 biases" in lines
    expected = f"Size: {sizes[0]:,} -> {sizes[1]:,} bytes ({sizes[1] / sizes[0]:.2f}x), written to '"
    assert any(line.startswith(expected) for line in lines)
    assert lines[-2] == "Runs on ONNX Runtime CPU: yes. Operator library needed: none"
    assert lines[-1].startswith("Not smaller than the float file") == (sizes[1] >= sizes[0])


def test_the_summary_of_blocks(bench: EvaluationSet) -> None:
    out, _ = bench.with_data("MX9", "--exclude-op", "Gemm")
    lines = out.splitlines()
    assert lines[0] == "No ranges measured: the formats of this scheme need none"
    assert "Quantized to mx9: 1 activation, 1 weight" in lines
    assert any(line.startswith("Kept in float: ") and "Gemm 1" in line for line in lines)
    assert lines[-2].endswith(" none (standard-operator functions inside; faster with ours)")


def test_the_summary_of_casts(bench: EvaluationSet) -> None:
    out, _ = bench.quantize(bench.toml('preset = "BF16"\nbfloat16_as = "cast"'))
    lines = out.splitlines()
    assert "Quantized to bfloat16: 3 activations, 2 weights, 2 biases" in lines
    assert "Kept in float: nothing" in lines
    assert any(line.endswith("Operator library needed: none") for line in lines)


@pytest.mark.parametrize(
    ("between", "kept"),
    (
        ("r = Relu(a) s = Clip(r)", "nothing"),
        ("r = Relu(a) s = Softmax(r)", "3 nodes: Add 1, Relu 1, Softmax 1"),
        ("r = Tanh(a) s = Erf(r)", "1 node: Erf 1"),
    ),
)
def test_what_ends_an_integer_layer_is_not_kept_in_float(
    between: str, kept: str, bench: EvaluationSet
) -> None:
    """A runtime carries out bias and Relu with the layer, if integers follow."""
    text = f"""(float[N,M,4] x) => (float[N,M,8] y) {{
        m = MatMul(x, v) a = Add(m, b) {between} y = MatMul(s, w) }}"""
    onnx.save(plans.model(text, {"v": (4, 8), "b": (8,), "w": (8, 8)}), bench.source)
    out, _ = bench.quantize("U8S8", "--random-data", 2)
    assert f"Kept in float: {kept}" in out.splitlines()


# The scheme


@pytest.mark.parametrize("name", PLAIN)
def test_print_config_alone(name: str, bench: EvaluationSet) -> None:
    assert bench.run("--config", name, "--print-config") == 0
    out, err = bench.printed()
    assert read_scheme(bench.toml(out)) == preset(name) and err == ""


def test_print_config_with_a_run(bench: EvaluationSet) -> None:
    out, _ = bench.with_data("A8W8", "--print-config", "--no-per-channel")
    config, summary = re.split("^(?=Kept: |Outputs: )", out, maxsplit=1, flags=re.MULTILINE)
    asked = preset("A8W8").with_(per_channel=False)
    assert read_scheme(bench.toml(config)) == as_asked(bench.scheme(), asked) == asked
    assert "written to" in summary


def test_what_a_target_changes_is_said_once(bench: EvaluationSet) -> None:
    _, err = bench.with_data(
        "XINT8", "--target", "tensorrt", "--set", "weight_method=MinMax", "--print-config"
    )
    lines = [line for line in err.splitlines() if line.startswith("For target tensorrt: ")]
    assert lines and len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("options", "changes"),
    (
        (["--per-channel"], {"per_channel": True}),
        (["--no-per-channel"], {"per_channel": False}),
        (["--calibrate-method", "Entropy"], {"calibrate_method": "Entropy"}),
        (["--exclude-node", "a*", "--exclude-node", "b"], {"exclude_nodes": ("a*", "b")}),
        (["--exclude-op", "Gemm"], {"exclude_op_types": ("Gemm",)}),
        (["--keep-weight-nodes"], {"keep_weight_nodes": True}),
        (["--no-optimize"], {"optimize": False}),
        (["--domain", "com.amd.quark"], {"domain": "com.amd.quark"}),
        (["--qdq-domain", "com.microsoft"], {"qdq_domain": "com.microsoft"}),
        (["--set", "fold_relu=true"], FOLDED),
        (["--set", "percentile = 99.5"], {"percentile": 99.5}),
        (["--set", 'calibrate_method="Percentile"'], {"calibrate_method": "Percentile"}),
        (["--set", "bias=float16"], {"bias": "float16"}),
        (
            ["--set", 'op_types=["Gemm"]', "--set", "fold_relu=true"],
            {"op_types": ("Gemm",), "fold_relu": True},
        ),
        (["--set", 'exclude_nodes=["x"]', "--exclude-node", "y"], {"exclude_nodes": ("x", "y")}),
        (
            ["--set", 'layers.Conv="mx9"', "--set", 'layers.Gemm.weight="int4"'],
            {"layers": {"Conv": "mx9", "Gemm": {"weight": "int4"}}},
        ),
        (["--set", 'tensors."a.b"="float16"'], {"tensors": {"a.b": "float16"}}),
    ),
)
def test_options_change_keys_of_the_scheme(options: list[str], changes: dict, bench: EvaluationSet) -> None:
    assert bench.run("--config", "U8S8", "--print-config", *options) == 0
    assert read_scheme(bench.toml(bench.printed()[0])) == preset("U8S8").with_(**changes)


def test_tables_of_a_file_grow_by_options(bench: EvaluationSet) -> None:
    path = bench.toml('preset = "A8W8"\nexclude_nodes = ["a"]\n[layers]\nConv = "mx9"\nGemm = "mx6"')
    given = ["--config", str(path), "--set", 'layers.Conv="mx4"', "--exclude-node", "b"]
    job = parse(quantize.main.parser(), given)
    expected = preset("A8W8").with_(layers={"Conv": "mx4", "Gemm": "mx6"}, exclude_nodes=("a", "b"))
    assert asked_scheme(job.keywords(), SILENT) == expected


def test_keys_of_one_table_add_up() -> None:
    keys = (
        "layers.c.activation=int16",
        "layers.c.weight=int16",
        "formats.m.base=mx9",
        "formats.m.bit_width=15",
    )
    given = ["--config", "A8W8", *(word for key in keys for word in ("--set", key))]
    scheme = asked_scheme(parse(quantize.main.parser(), given).keywords(), SILENT)
    assert scheme.layers["c"].said == {"activation": "int16", "weight": "int16"}
    assert scheme.formats["m"] == {"base": "mx9", "bit_width": 15}


def test_a_scheme_from_a_file(bench: EvaluationSet) -> None:
    path = bench.toml('activation = "bfloat16"\nweight = "mxint8"\nother = "float32"')
    bench.quantize(path)
    assert bench.scheme() == Scheme("bfloat16", "mxint8", other="float32", fit_weights=False)


# Data


def test_a_cache_is_written_read_and_bound_to_its_data(bench: EvaluationSet) -> None:
    cache = bench.folder / "cache.json"
    bench.with_data("A8W8", "--calibration-cache", cache)
    first, content = bench.target.read_bytes(), cache.read_bytes()
    bench.with_data("A8W8", "--calibration-cache", cache, "--force")
    assert bench.target.read_bytes() == first and cache.read_bytes() == content
    np.save(bench.data / "9.npy", 100 * bench.feeds[0]["x"])
    bench.with_data("A8W8", "--calibration-cache", cache, "--force")
    assert bench.target.read_bytes() != first and len(cache.read_bytes()) > len(content)


def test_a_limit(bench: EvaluationSet) -> None:
    """By rules, which leave the input no headroom beyond its samples."""
    np.save(bench.data / "9.npy", 100 * bench.feeds[0]["x"])
    scales = []
    for options in ([], ["--limit", 4]):
        bench.with_data("U8S8", "--force", "--fast", *options)
        scales.append(float(stored(bench.result())["x_scale"]))
    low, high = (f(feed["x"].astype(float) for feed in bench.feeds) for f in (_least, _largest))
    assert scales[1] == np.float32((high - low) / 255) and scales[0] > 30 * scales[1]


def _least(arrays: object) -> float:
    return min(float(array.min()) for array in arrays)  # type: ignore[attr-defined]


def _largest(arrays: object) -> float:
    return max(float(array.max()) for array in arrays)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ("npz", "npy", "png"))
def test_kinds_of_samples(kind: str, bench: EvaluationSet) -> None:
    pixels: NDArray[np.uint8] = np.arange(64, dtype=np.uint8).reshape(8, 8)
    array = pixels.astype(np.float32)[None, None] / 63
    for path in bench.data.iterdir():
        path.unlink()
    if kind == "npz":
        np.savez(bench.data / "a.npz", x=array)
    elif kind == "npy":
        np.save(bench.data / "a.npy", array)
    else:
        Image.fromarray(pixels).save(bench.data / "a.png")
    onnx.save(corpus.parse("(float[1,1,8,8] x) => (float[1,2,6,6] y) { y = Conv(x, kernel) }"), bench.source)
    bench.with_data("U8S8", *(["--std", "63"] if kind == "png" else []))
    assert stored(bench.result())["x_scale"] == np.float32(1 / 255)


def test_random_data_are_used_with_a_warning(bench: EvaluationSet) -> None:
    results = []
    for count in (3, 3, 4):
        _, err = bench.quantize("A8W8", "--random-data", count, "--force")
        assert err == RANDOM
        results.append(bench.target.read_bytes())
    assert results[0] == results[1] != results[2]
    out, err = bench.quantize("MX9", "--random-data", 3, "--force")
    assert err == "" and "No ranges measured" in out


@pytest.mark.parametrize("name", ("FP16", "BF16", "BFP16", "MX6", "BF16_MXINT8"))
def test_formats_without_ranges_need_no_data(name: str, bench: EvaluationSet) -> None:
    out, err = bench.quantize(name)
    assert err == "" and "Calibrat" not in out and bench.result().graph.node


# The program


def test_as_a_program(bench: EvaluationSet) -> None:
    """Progress is not shown where stderr is no terminal."""
    command = [sys.executable, "-m", "tools.quantize", "--input", "m.onnx", "--output", "q.onnx"]
    command += ["--config", "A8W8", "--data", "data", "--threads", "1", "--set", "keep_float=false"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=bench.folder, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == "" and "\nRuns on ONNX Runtime CPU: yes" in done.stdout
    assert sorted(path.name for path in bench.folder.iterdir()) == ["data", "m.onnx", "q.onnx"]


def test_help_starts_fast() -> None:
    code = (
        "import sys\nfrom tools import quantize\ntry: quantize.main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'onnx', 'onnxruntime', 'PIL', 'numpy', 'tqdm', 'ops'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.endswith("[]\n")
    for name in PLAIN:
        assert f" {name} " in done.stdout.replace("\n", " ")


def test_workers_measure_the_same_ranges(bench: EvaluationSet) -> None:
    """The model is the same to the last bit for any number of workers."""
    made = []
    for options in (["--jobs", "1"], ["--jobs", "3"]):
        out, _ = bench.with_data("U8S8", "--calibrate-method", "Percentile", "--no-time", "--force", *options)
        made.append((bench.target.read_bytes(), out))
    assert len(set(made)) == 1


def test_a_scheduler_that_is_not_there(bench: EvaluationSet, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("onnx_narrow.api.dask_executor._PATIENCE", 1.0)
    where = ["--input", bench.source, "--output", bench.target, "--config", "A8W8", "--data", bench.data]
    assert bench.run(*where, "--dask", "tcp://127.0.0.1:9") == 1
    error = bench.printed()[1]
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:9': " in error
    assert error.strip().splitlines()[-1].startswith("tools.quantize: error: ")
    assert not bench.target.exists()
