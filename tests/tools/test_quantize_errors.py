"""Every refusal is one line that names the thing; exit 1, or 2 for wrong usage; no file is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import build, corpus, plans
from tests.helpers.quantization import random
from tests.helpers.refusal import Scene


class EvaluationSet(Scene):
    """A scene with the model ``layers`` of the corpus and a folder of samples."""

    data: Path

    def refuses(self, config: object, *options: object, code: int = 1) -> str:
        """Run with the data, assert the rules of a refusal, and return the message."""
        return self.refuses_alone(config, "--data", self.data, *options, code=code)

    def refuses_alone(self, config: object, *options: object, code: int = 1) -> str:
        """Run without data."""
        words = [str(word) for word in ("--config", config, *options)]
        message = self.refused(*words, code=code)
        assert "Traceback" not in message
        return message.partition("error: ")[2]

    def toml(self, text: str) -> Path:
        path = self.folder / "in" / "scheme.toml"
        path.write_text(text, encoding="utf-8")
        return path

    def sample(self, **arrays: np.ndarray) -> None:
        """Let the folder hold one sample alone."""
        for path in self.data.iterdir():
            path.unlink()
        np.savez(self.data / "bad.npz", **arrays)


@pytest.fixture
def bench(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> EvaluationSet:
    scene = EvaluationSet("quantize", tmp_path, capfd, monkeypatch)
    scene.write(corpus.build("layers"))
    scene.data = tmp_path / "in" / "data"
    scene.data.mkdir()
    for i in range(2):
        np.save(scene.data / f"{i}.npy", random(3, 4, seed=i))
    return scene


def test_the_scene_itself_is_sound(bench: EvaluationSet) -> None:
    for name in ("A8W8", "MX9"):
        found = bench.convert("--config", name, "--data", str(bench.data), "--force")
        assert found == (0, "") and bench.target.exists()


# The scheme


@pytest.mark.parametrize(
    ("options", "message"),
    (
        (["A8W9"], "'A8W9' is neither a file nor one of the presets, did you mean 'A8W8'? They are A8W8"),
        (["a8w8"], "'a8w8' is neither a file nor one of the presets, did you mean 'A8W8'?"),
        (
            ["A8W8", "--set", "per_channel=true", "--no-per-channel"],
            "--no-per-channel and --set per_channel set the same key: give one of them",
        ),
        (["A8W8", "--set", "percentil=3"], "key 'percentil' is unknown, did you mean 'percentile'?"),
        (["A8W8", "--set", "activation=int9"], "activation: format 'int9' is unknown, did you mean 'int8'?"),
        (["A8W8", "--set", "activation=int4"], "activation is 'int4', but int4 is for weights"),
        (["A8W8", "--set", "fold_relu=1"], "fold_relu is 1, it must be true or false"),
        (["A8W8", "--set", "percentile.x=1"], "percentile is {'x': 1}, it must be a number"),
        (["A8W8", "--set", "fold_relu"], "--set 'fold_relu' is not KEY=VALUE"),
        (["A8W8", "--set", "=1"], "key '' is unknown"),
        (["A8W8", "--set", 'layers.nothing="mx9"'], "layers entry 'nothing' matches no node name"),
        (["A8W8", "--set", 'layers.Relu="mx9"'], "layers entry 'Relu': no input of Relu can take mx9"),
        (["A8W8", "--set", 'tensors.nothing="int8"'], "tensors entry 'nothing' is not a tensor of the model"),
        (
            ["A8W8", "--set", 'layers.Gemm="mx10"'],
            "layers entry 'Gemm': activation: format 'mx10' is unknown",
        ),
        (["MX9", "--exclude-node", "nothing*"], "no node name matches 'nothing*'"),
        (["MX9", "--exclude-op", "Softmax"], "no node has operator type 'Softmax'; the model has"),
        (
            ["A8W8", "--calibrate-method", "Entropy", "--set", "moving_average=true"],
            "a moving average is part of method MinMax, not of Entropy",
        ),
    ),
)
def test_schemes(options: list[str], message: str, bench: EvaluationSet) -> None:
    assert bench.refuses(*options).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ('preset = "A9W9"', "preset 'A9W9' is unknown, legal are A8W8,"),
        ("activation = ", "Invalid value"),
        ('weight = "int8"', "key 'activation' is missing"),
        (
            'preset = "MX9"\n[formats]\nown = { base = "mx9", bits = 3 }',
            "format 'own': attribute 'bits' is unknown",
        ),
        ('preset = "MX9"\n[tensors]\nx = "own"', "tensors entry 'x': format 'own' is unknown"),
    ),
)
def test_scheme_files_are_named(text: str, message: str, bench: EvaluationSet) -> None:
    path = bench.toml(text)
    assert bench.refuses(path).startswith(f"{path}: {message}")


def test_a_format_where_it_can_not_be(bench: EvaluationSet) -> None:
    """The indices of a Gather are integers; the scales of a Resize belong to its schema."""
    text = "(float[1,1,4,4] x) => (float[1,1,A,B] y) { r = Resize(x, , scales) y = Conv(r, kernel) }"
    weights: plans.Weights = {"scales": np.array([1, 1, 2, 2], np.float32), "kernel": (1, 1, 1, 1)}
    bench.write(plans.model(text, weights))
    message = bench.refuses("BF16", "--set", 'tensors.scales="float16"')
    assert message.startswith("tensors entry 'scales': nothing that reads it can take float16")


# The data


@pytest.mark.parametrize(
    ("arrays", "words"),
    (
        ({"z": random(3, 4)}, ("bad", "'z'")),
        ({"x": random(3, 5)}, ("bad", "'x'", "5")),
        ({"x": random(3, 4, 1)}, ("bad", "'x'")),
        ({"x": np.full((3, 4), 1e300)}, ("bad", "'x'", "float64")),
        ({"x": np.full((3, 4), np.nan, np.float32)}, ("bad", "'x'", "NaN")),
        ({"x": random(3, 4), "z": random(3)}, ("bad", "'z'")),
        ({"x": random(0, 4)}, ("'x'", "it had no elements in any sample")),
    ),
)
def test_samples(arrays: dict[str, np.ndarray], words: tuple[str, ...], bench: EvaluationSet) -> None:
    bench.sample(**arrays)
    message = bench.refuses("U8S8")
    assert all(word in message for word in words)


def test_infinite_activations(bench: EvaluationSet) -> None:
    """Sums of numbers this large are infinite, and infinities are no range."""
    bench.sample(x=np.full((3, 4), 3e38, np.float32))
    message = bench.refuses("U8S8", "--set", "weight_method=MinMax")
    assert message == "tensor 'y' has no range: no sample has a finite number in it"


def test_folders_of_data(bench: EvaluationSet) -> None:
    for path in bench.data.iterdir():
        path.unlink()
    assert str(bench.data) in bench.refuses("A8W8")
    assert "absent" in bench.refuses_alone("A8W8", "--data", bench.folder / "absent")
    (bench.data / "a.npy").write_bytes(b"no array")
    assert "a.npy" in bench.refuses("A8W8")


def test_no_data_where_ranges_are_needed(bench: EvaluationSet) -> None:
    message = bench.refuses_alone("U8S8", "--set", "weight_method=MinMax")
    assert message == (
        "3 tensors need ranges, 'x' the first, and there are no calibration data: "
        "give --data DIR, or --random-data N for an experiment"
    )


def test_a_cache_that_is_none(bench: EvaluationSet) -> None:
    cache = bench.folder / "in" / "cache.json"
    cache.write_text('{"format": "another"}')
    assert str(cache) in bench.refuses("A8W8", "--calibration-cache", cache)
    absent = bench.folder / "absent" / "cache.json"
    assert str(absent.parent) in bench.refuses("A8W8", "--calibration-cache", absent)


# The model


def test_nan_in_weights(bench: EvaluationSet) -> None:
    model = build.dense(4)
    weight = np.full((4, 4), np.nan, np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "weight0"))
    bench.write(model)
    for name in ("A8W8", "MX9"):
        assert bench.refuses(name).startswith("NaN in 1 weights, 'weight0' the first")


def test_a_model_that_is_quantized(bench: EvaluationSet) -> None:
    bench.write(corpus.build("quantized"))
    expected = f"the model is quantized already: 'd' is a DequantizeLinear node (in '{bench.source}')"
    assert bench.refuses("A8W8") == bench.refuses_alone("MX9") == expected


def test_an_opset_that_can_not_be_raised(bench: EvaluationSet) -> None:
    text = """(float[1,2,3] x) => (float[1,2,3] y) <float[6] s = {1, 1, 1, 1, 1, 1}> {
        y = BatchNormalization <spatial = 0> (x, s, s, s, s) }"""
    bench.write(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 7]> main {text}'))
    message = bench.refuses("A8W8")
    assert message.startswith("the model cannot be raised from opset 7 to 13") and "spatial" in message


@pytest.mark.parametrize("kind", (b"", b"text", bytes(100)))
def test_what_is_no_model(kind: bytes, bench: EvaluationSet) -> None:
    bench.write(kind)
    assert "model.onnx" in bench.refuses("A8W8")
    bench.source.unlink()
    assert "model.onnx" in bench.refuses("A8W8")


# The output


def test_outputs(bench: EvaluationSet) -> None:
    words = ("--config", "MX9")
    absent = bench.folder / "absent" / "q.onnx"
    assert "absent" in bench.refused(*words, target=absent)
    assert "is a folder" in bench.refused(*words, target=bench.target.parent)
    assert "the input itself" in bench.refused(*words, "--force", target=bench.source)
    bench.target.write_bytes(b"another model")
    assert "--force overwrites it" in bench.refused(*words)


def test_the_output_is_looked_at_before_any_work(bench: EvaluationSet) -> None:
    bench.write(b"no model")
    bench.target.write_bytes(b"another model")
    assert "--force overwrites it" in bench.refuses("A8W8")


def test_a_failure_while_writing_leaves_the_older_file(
    bench: EvaluationSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.target.write_bytes(b"another model")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "No space left on device" in bench.refuses("A8W8", "--force")
    assert bench.target.read_bytes() == b"another model"


# Usage


@pytest.mark.parametrize(
    "options",
    (
        [],
        ["--config", "A8W8"],
        ["--config", "A8W8", "--input", "m.onnx"],
        ["--config", "A8W8", "--output", "q.onnx"],
        ["--config", "A8W8", "--print-config", "--input", "m.onnx"],
        ["--config", "A8W8", "--print-config", "--calibrate-method", "Best"],
        ["--config", "A8W8", "--print-config", "--domain", "x"],
        ["--config", "A8W8", "--print-config", "--unknown"],
        ["--conf", "A8W8", "--print-config"],
        ["--config", "A8W8", "--print-config", "--limit", "3"],
        ["--config", "A8W8", "--print-config", "--calibration-cache", "c.json"],
        ["--config", "A8W8", "--print-config", "--layout", "NCHW"],
        ["--config", "A8W8", "--print-config", "--random-data", "3", "--limit", "3"],
        ["--config", "A8W8", "--print-config", "--random-data", "3", "--data", "d"],
        ["--config", "A8W8", "--print-config", "--random-data", "3", "--calibration-cache", "c.json"],
        ["--config", "A8W8", "--print-config", "--random-data", "0"],
        ["--config", "A8W8", "--print-config", "--data", "d", "--limit", "0"],
    ),
)
def test_wrong_usage(options: list[str], bench: EvaluationSet) -> None:
    code, errors = bench.run(*options)
    assert bench.message(code, errors, 2).endswith("(see --help)")
