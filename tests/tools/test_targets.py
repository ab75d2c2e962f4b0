"""``--target``: rules of every row on written models. Oracle: the protos, without the code of the check."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from onnx_narrow.options.shared import TARGETS as NAMES
from onnx_narrow.summaries import running
from onnx_narrow.summaries.timing import what_helps
from tests.helpers import build, conversion, corpus, plans, tunable
from tools import auto_mixed_precision, check, convert_fp32_to_bf16, quantize
from transforms.pipelines import try_out
from transforms.run.beside_float import BesideFloat, KernelTime
from transforms.run.turns import Timing
from transforms.scheme import Scheme
from transforms.scheme.targets import TARGETS

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 6)
INPUT = CONV.graph.input[0].name
SHAPE = f"{INPUT}:{','.join(map(str, DATA[0][INPUT].shape))}"
INTEGERS = [name for name, row in TARGETS.items() if row.takes_integers]
PRODUCTS = ("Conv", "Gemm", "MatMul")


class Bench:
    """A folder with a float model, samples, and the results of the tools."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.source, self.target, self.data = folder / "m.onnx", folder / "q.onnx", folder / "data"
        self.data.mkdir()
        for i, feed in enumerate(DATA):
            np.savez(self.data / f"{i}.npz", **feed)
        onnx.save(CONV, self.source)

    def quantize(self, *options: object, code: int = 0, shape: str = SHAPE) -> str:
        paths = ["--input", self.source, "--output", self.target, "--data", self.data, "--force"]
        assert quantize.main([str(word) for word in (*paths, "--input-shape", shape, *options)]) == code
        out, err = self._capsys.readouterr()
        return err if code else out + err

    def check(self, name: str) -> tuple[int, str]:
        code = check.main(["--input", str(self.target), "--target", name])
        return code, self._capsys.readouterr().out

    def made(self) -> onnx.ModelProto:
        model = onnx.load(self.target)
        onnx.checker.check_model(model, full_check=True)
        return model


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


def test_names_on_the_command_line_are_those_of_the_table() -> None:
    assert set(NAMES) == set(TARGETS) and all(name == row.name for name, row in TARGETS.items())
    assert all(row.sources and row.speed and row.verified for row in TARGETS.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_rules_of_each_target_hold_in_the_file(name: str, bench: Bench) -> None:
    out = bench.quantize("--target", name)
    row, model = TARGETS[name], bench.made()
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert bool(pairs) == row.takes_integers
    for node in pairs:
        scale, zero = numpy_helper.to_array(held[node.input[1]]), _zero(node, held)
        kind = TensorProto.DataType.Name(_kind(node, held)).lower()
        assert kind in {*row.activations, *row.weights, "int32"}
        if row.symmetric:
            assert not zero.any()
        if row.power_of_two:
            assert (np.frexp(scale)[0] == 0.5).all()
        if not row.per_channel:
            assert scale.size == 1
        stored = held.get(node.input[0])
        if row.narrow_weights and stored is not None and stored.data_type == TensorProto.INT8:
            assert numpy_helper.to_array(stored).min() >= -127
        assert node.domain in row.qdq_domains
    biases = {_kind(n, held) for n in pairs if n.input[0] in held} & {TensorProto.INT32}
    assert bool(biases) == (row.takes_integers and "int32" in row.biases)
    opset = next(one.version for one in model.opset_import if not one.domain)
    assert row.opsets is None or row.opsets[0] <= opset <= row.opsets[1]
    if row.fixed_shapes:
        assert all(dim.HasField("dim_value") for dim in model.graph.input[0].type.tensor_type.shape.dim)
    assert f"For {row.runtime}: " in out and row.speed in out
    assert bench.check(name)[0] == 0


def _kind(node: onnx.NodeProto, held: dict[str, TensorProto]) -> int:
    if len(node.input) > 2 and node.input[2]:
        return held[node.input[2]].data_type
    return held[node.input[0]].data_type if node.input[0] in held else TensorProto.UINT8


def _zero(node: onnx.NodeProto, held: dict[str, TensorProto]) -> np.ndarray:
    if len(node.input) < 3 or not node.input[2]:
        return np.zeros(1)
    return numpy_helper.to_array(held[node.input[2]]).astype(np.int64)


def test_every_layer_gets_its_integer_kernel_on_the_cpu(bench: Bench, tmp_path: Path) -> None:
    """Oracle: the graph that ONNX Runtime makes of the model."""
    import onnxruntime as ort

    bench.quantize("--target", "ort-cpu")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(str(bench.target), options, providers=["CPUExecutionProvider"])
    ops = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert not {"Conv", "FusedConv", "Gemm", "MatMul"} & set(ops)
    wanted = sum(node.op_type in PRODUCTS for node in CONV.graph.node)
    made = ("QLinearConv", "QGemm", "QLinearMatMul", "MatMulIntegerToFloat")
    assert sum(op in made for op in ops) == wanted
    code, out = bench.check("ort-cpu")
    found = re.search(r"(\d+) nodes in low precision", out)
    assert code == 0 and found and int(found[1]) >= wanted


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ort-cpu", ["--config", "MX9"], "activation is mx9, it takes uint8 or int8"),
        ("tensorrt", ["--config", "U8S8"], "activation is uint8, it takes int8"),
        ("ryzen-ai-cnn", ["--config", "A8W8"], "scale is float, all scales have to be powers of two"),
        ("ryzen-ai-cnn", ["--per-channel"], "per_channel is True, a weight has one scale"),
        ("ryzen-ai-cnn", ["--opset", "21"], "opset is 21, it takes 13 to 17"),
        ("ryzen-ai-cnn", ["--qdq-domain", "com.microsoft"], "qdq_domain is 'com.microsoft'"),
        ("ryzen-ai-float-scale", ["--config", "U8S8"], "activation is uint8, it takes int8 or int16"),
        ("qnn", ["--config", "A8W8"], "activation is int8, it takes uint8 or uint16"),
        ("tensorrt", ["--set", "bias=int32"], "bias is int32, it takes float32"),
        ("ryzen-ai-bf16", ["--config", "A8W8"], "activation is int8, it takes bfloat16"),
        ("ort-cpu", ["--set", "layers.Conv=mx6"], "layers entry 'Conv': activation is mx6"),
    ],
)
def test_a_scheme_that_contradicts_the_target_is_refused(
    name: str, options: list[str], message: str, bench: Bench
) -> None:
    error = bench.quantize("--target", name, *options, code=1)
    assert error.startswith(f"tools.quantize: error: target '{name}': {message}") and error.count("\n") == 1
    assert not bench.target.exists()


def test_what_has_no_choice_is_adapted_and_said(bench: Bench) -> None:
    assert "For target tensorrt: bias = float32" in bench.quantize("--target", "tensorrt", "--config", "A8W8")
    assert "For target ryzen-ai-cnn: opset = 17" in bench.quantize(
        "--target", "ryzen-ai-cnn", "--config", "XINT8"
    )


@pytest.mark.parametrize("options", ([], ["--config", "U8S8"]))
def test_constants_beside_activations_are_of_their_type(options: list[str], bench: Bench) -> None:
    text = (
        "(float[4, 8] x) => (float[4, 8] y) { m = MatMul(x, w) k = Mul(m, v) s = Add(k, u) y = MatMul(s, z) }"
    )
    model = plans.model(text, {"w": (8, 8), "v": (8,), "u": (4, 8), "z": (8, 8)})
    onnx.save(model, bench.source)
    for path in bench.data.iterdir():
        np.savez(path, x=np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32))
    bench.quantize("--target", "qnn", *options, shape="x:4,8")
    assert bench.check("qnn")[0] == 0
    kinds = {TensorProto.DataType.Name(one.data_type) for one in bench.made().graph.initializer}
    assert not kinds & {"UINT8" if not options else "UINT16"}


def test_free_dimensions_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = onnx.ModelProto()
    free.CopyFrom(CONV)
    free.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(free, tmp_path / "m.onnx")
    paths = ["--input", str(tmp_path / "m.onnx"), "--output", str(tmp_path / "q.onnx")]
    for main, more in ((quantize.main, ["--random-data", "1"]), (convert_fp32_to_bf16.main, [])):
        name = "qnn" if main is quantize.main else "ryzen-ai-bf16"
        assert main([*paths, *more, "--target", name]) == 1
        assert f"target '{name}': input '{INPUT}' has free dimensions: fix them" in capsys.readouterr().err


@pytest.mark.parametrize("name", INTEGERS)
def test_check_finds_what_another_target_does_not_take(name: str, bench: Bench) -> None:
    other = "ryzen-ai-cnn" if TARGETS[name].activations[0].startswith("u") else "qnn"
    bench.quantize("--target", name)
    code, out = bench.check(other)
    assert code == 3 and "Breaks: " in out and out.endswith(f"Fits {other}: no\n")


def test_check_of_a_float_model_says_that_nothing_is_quantized(bench: Bench) -> None:
    bench.target = bench.source
    code, out = bench.check("ort-cpu")
    assert code == 3 and "nothing is quantized" in out and "0 nodes in low precision" in out


def _converted(bench: Bench, *options: str) -> onnx.ModelProto:
    paths = ["--input", str(bench.source), "--output", str(bench.target), "--input-shape", SHAPE, "--force"]
    assert convert_fp32_to_bf16.main([*paths, *options]) == 0
    return bench.made()


def test_converters_take_the_format_of_the_target(bench: Bench) -> None:
    named = _converted(bench, "--target", "ryzen-ai-bf16")
    assert named.graph == _converted(bench, "--format", "with_cast").graph
    assert bench.check("ryzen-ai-bf16")[0] == 0


def test_operators_without_a_kernel_in_bfloat16_stay_float(bench: Bench) -> None:
    """CUDA has none for ConvTranspose and GlobalAveragePool: the runtime refuses a model with one of them."""
    types, models = {}, {}
    for options in (("--target", "ort-cuda"), ("--format", "bf16")):
        models[options[1]] = model = onnx.shape_inference.infer_shapes(_converted(bench, *options))
        kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
        types[options[1]] = {
            node.op_type: kinds.get(node.output[0]) for node in model.graph.node if node.op_type != "Cast"
        }
        code, out = bench.check("ort-cuda")
        broken = re.findall(r"Breaks: .*: no kernel for (\w+) in bfloat16", out)
        lacking = {"ConvTranspose", "GlobalAveragePool"}
        assert (code, set(broken)) == ((0, set()) if options[1] == "ort-cuda" else (3, lacking))
        assert ("no kernel in low precision: " in out) is (options[1] == "bf16")
    floats = {op for op, kind in types["ort-cuda"].items() if kind == TensorProto.FLOAT}
    assert floats == lacking and types["ort-cuda"]["Conv"] == TensorProto.BFLOAT16
    assert set(types["bf16"].values()) == {TensorProto.BFLOAT16}
    feeds = [conversion.run_wrapped(models[name], DATA[0]) for name in models]
    assert all(np.array_equal(feeds[0][name], feeds[1][name]) for name in feeds[0])


def test_weights_of_8_bits_in_blocks_are_refused_for_cuda(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime's CUDA provider fails at the first run on int8 in blocks; of int4 it runs them."""
    weights = {"w": np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)}
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    ends = build.value("x", [2, 64]), build.value("y", [2, 8])
    onnx.save(build.model(nodes, [ends[0]], [ends[1]], weights), bench.source)
    paths = ["--input", str(bench.source), "--output", str(bench.target), "--target", "ort-cuda"]
    blocks = [*paths, "--config", "W8", "--set", "block_size=32"]
    assert quantize.main(blocks) == 1
    words = "no kernel for int8 in blocks (--matmul-nbits, or no block_size)"
    assert words in capsys.readouterr().err
    for options in ([*blocks, "--matmul-nbits"], [*paths, "--config", "W8"], [*paths, "--config", "W4"]):
        assert quantize.main([*options, "--force"]) == 0
        assert bench.check("ort-cuda")[0] == 0


def test_nodes_between_casts_are_float_on_cuda(bench: Bench) -> None:
    assert "0 nodes in low precision: none" in bench.quantize("--target", "ort-cuda")


def test_converters_refuse_targets_of_integers_and_other_formats(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["--input", str(bench.source), "--output", str(bench.target)]
    assert convert_fp32_to_bf16.main([*paths, "--target", "ort-cpu"]) == 1
    assert (
        "target 'ort-cpu' takes no bfloat16, but uint8 or int8: python -m tools.quantize"
        in capsys.readouterr().err
    )
    assert convert_fp32_to_bf16.main([*paths, "--target", "ryzen-ai-bf16", "--format", "customqdq"]) == 1
    assert "takes --format with_cast, not customqdq" in capsys.readouterr().err


def test_mixed_precision_for_a_target(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ["--input", bench.source, "--output", bench.target, "--data", bench.data, "--input-shape", SHAPE]
    words = [*map(str, paths), "--config", "A16W8", "--target", "ryzen-ai-float-scale", "--target", "int8"]
    assert auto_mixed_precision.main([*words, "--sqnr-target", "10"]) == 0
    assert "For AMD Ryzen AI NPU, A8W8 and A16W8: " in capsys.readouterr().out
    assert bench.check("ryzen-ai-float-scale")[0] == 0
    assert auto_mixed_precision.main([*words, "--target", "mx6", "--sqnr-target", "10", "--force"]) == 1
    assert (
        "target 'ryzen-ai-float-scale': auto_mixed_precision: activation of 'mx6'" in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        auto_mixed_precision.main([*words, "--target", "qnn"])


def test_int8_activations_name_the_faster_target(bench: Bench) -> None:
    hint = "--target ort-cpu makes a faster model"
    assert hint in bench.quantize("--config", "A8W8", "--no-time")
    assert hint not in bench.quantize("--config", "U8S8", "--no-time")


@pytest.mark.parametrize(
    ("target", "helps"),
    [("", "--target ort-cpu makes"), ("ort-cpu", "--target ort-cpu --data DIR leaves layers in float")],
)
def test_a_slower_model_is_said_with_the_cause_and_what_helps(
    target: str, helps: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = Timing(2e-3, 1.9e-3, 2.1e-3, 9), Timing(1e-3, 1e-3, 1e-3, 9), Timing(2.0, 1.9, 2.1, 9)
    lost = KernelTime("DequantizeLinear", 12, 8e-4, 0.0), KernelTime("QLinearConv", 1, 9e-4, 5e-4)
    monkeypatch.setattr(try_out, "time_beside_float", lambda *_: BesideFloat(*times, lost))
    options = ["--target", target] if target else ["--config", "A8W8"]
    out = bench.quantize(*options)
    assert "Time here: 2.00 ms, float 1.00 ms: 2 times slower than float (1.90 to 2.10)\n" in out
    words = "DequantizeLinear 0.80 ms in 12 nodes, QLinearConv 0.90 ms (float 0.50 ms) in 1 node; "
    assert f"Slower: {words}" in out and helps in out
    assert "Time here" not in bench.quantize(*options, "--no-time")


def test_no_time_is_said_where_times_scatter(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    times = Timing(2e-3, 1.9e-3, 2.1e-3, 9), Timing(1e-3, 1e-3, 1e-3, 9), Timing(20.7, 0.14, 33.93, 9)
    monkeypatch.setattr(try_out, "time_beside_float", lambda *_: BesideFloat(*times))
    out = bench.quantize("--config", "A8W8")
    assert "Time here: unknown, times scatter: the machine is too busy\n" in out and "Slower" not in out


def test_a_scale_per_channel_is_no_help_where_caches_are_slow() -> None:
    scheme = Scheme("float32", "int8", block_size=32)
    times = Timing(2e-3, 1.9e-3, 2.1e-3, 9), Timing(1e-3, 1e-3, 1e-3, 9), Timing(2.0, 1.9, 2.1, 9)
    for op, helps in (("DequantizeLinear", True), ("QuantizeLinear", False)):
        found = BesideFloat(*times, (KernelTime(op, 12, 8e-4, 0.0),))
        assert ("block_size=0" in what_helps(scheme, found)) is helps


@pytest.mark.timed
def test_models_for_other_runtimes_are_not_timed(bench: Bench) -> None:
    assert "Time here" not in bench.quantize("--target", "qnn")
    assert "Time here" in bench.quantize("--target", "ort-cpu")


@pytest.mark.parametrize("saturates", [True, False])
def test_sums_that_may_saturate_here_are_said(
    saturates: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of weights that may make them so: of none by default, nor of models that are made for elsewhere."""
    monkeypatch.setattr(running, "sums_saturate", lambda: saturates)
    said = re.compile(r"8-bit sums of \d products? may saturate on this processor: --set saturation=avoid")
    for options in (["--target", "ort-cpu"], ["--config", "U8S8"]):
        assert not said.search(bench.quantize(*options, "--verbose"))
        assert (
            bool(said.search(bench.quantize(*options, "--verbose", "--set", "saturation=ignore")))
            is saturates
        )
    assert not said.search(bench.quantize("--target", "qnn", "--config", "U8S8", "--verbose"))


@pytest.mark.timed
def test_a_float_model_that_fails_in_a_default_session_is_not_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime moves the Transpose behind the Pad with the axes as they are, beyond those of the pads."""
    nodes = (
        "a = Transpose <perm = [0, 3, 1, 2]> (x) b = Pad(a, p, , s) y = Transpose <perm = [0, 2, 3, 1]> (b)"
    )
    text = (
        f"(float[2,6,8,3] x) => (float[A,B,C,D] y) <int64[2] p = {{1, 2}}, int64[1] s = {{3}}> {{ {nodes} }}"
    )
    onnx.save(corpus.parse(text, opset=19), tmp_path / "m.onnx")
    with pytest.raises(Exception, match="out of data bounds"):
        feed = {"x": np.ones((2, 6, 8, 3), np.float32)}
        ort.InferenceSession(tmp_path / "m.onnx").run(None, feed)
    assert convert_fp32_to_bf16.main([*f"--input {tmp_path}/m.onnx --output {tmp_path}/q.onnx".split()]) == 0
    assert "Time here" not in capsys.readouterr().out
