"""Oracle: the scales and zero points in the written model, and the bytes of a model quantized again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import corpus
from tests.helpers.spread import spread
from tools import quantize
from transforms.plan.range_files import from_text, to_text
from transforms.plan.tensor_grids import TensorGrid


class Bench:
    """A float model, samples, and the tool."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capture = folder, capture
        self.source, self.target, self.data = folder / "m.onnx", folder / "q.onnx", folder / "data"
        self.file = folder / "ranges.json"
        onnx.save(corpus.build("layers"), self.source)
        self.data.mkdir()
        random = np.random.default_rng(3)
        for i in range(4):
            np.save(self.data / f"{i}.npy", random.standard_normal((3, 4)).astype(np.float32))

    def run(self, *options: object, code: int = 0) -> tuple[str, str]:
        paths = ["--input", self.source, "--output", self.target, "--force"]
        assert quantize.main([str(one) for one in (*paths, *options)]) == code
        out, err = self._capture.readouterr()
        return out, err

    def parameters(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return scale and zero point of each QuantizeLinear, and of each stored weight, by tensor."""
        model = onnx.load(self.target)
        known = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
        found = {}
        for node in model.graph.node:
            if node.op_type == "QuantizeLinear" or (
                node.op_type == "DequantizeLinear" and node.input[0] in known
            ):
                zero = known[node.input[2]] if len(node.input) > 2 else np.zeros((), np.int32)
                found[node.input[0]] = known[node.input[1]], zero
        return found


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capsys)


def content(path: Path) -> bytes:
    """Return a model without its metadata, which tells how it was made."""
    model = onnx.load(path)
    del model.metadata_props[:]
    return model.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("config", "suffix", "per_channel"),
    spread(
        ("A8W8", "U8S8", "A16W8", "W4A8"),
        (".json", ".encodings"),
        ("--per-channel", "--no-per-channel"),
        of=4,
    ),
)
def test_ranges_that_were_written_give_the_model_again(
    config: str, per_channel: str, suffix: str, bench: Bench
) -> None:
    """Without data: nothing is measured. Biases follow from the scales."""
    file = bench.folder / f"r{suffix}"
    options = ("--config", config, "--fast", per_channel, "--set", "correct_biases=false")
    out, _ = bench.run(*options, "--data", bench.data, "--export-ranges", file)
    assert f"written to '{file}'" in out
    first = content(bench.target)
    other = "--no-per-channel" if per_channel == "--per-channel" else "--per-channel"
    for again in (per_channel, other):  # the file decides, not the option
        out, _ = bench.run("--config", config, again, "--ranges", file)
        assert "Ranges as given: " in out and "Calibrated" not in out
        assert content(bench.target) == first


def test_what_the_file_says_is_in_the_model(bench: Bench) -> None:
    bench.run("--config", "U8S8", "--fast", "--data", bench.data, "--export-ranges", bench.file)
    tensors = json.loads(bench.file.read_text())["tensors"]
    scale, zero_point = bench.parameters()["x"]
    (entry,) = tensors["x"]
    assert (entry["role"], entry["format"], entry["axis"]) == ("activation", "uint8", None)
    assert np.float32(entry["scale"]) == scale and entry["zero_point"] == zero_point
    ends = [float(scale) * (end - int(zero_point)) for end in (0, 255)]
    assert entry["range"] == pytest.approx(ends)
    seen = [np.load(path) for path in bench.data.iterdir()]
    assert entry["seen"] == [min(one.min() for one in seen), max(one.max() for one in seen)]


def test_some_of_them_are_frozen_the_others_measured(bench: Bench) -> None:
    bench.run("--config", "A8W8", "--fast", "--data", bench.data, "--export-ranges", bench.file)
    before = bench.parameters()
    written = json.loads(bench.file.read_text())
    (entry,) = written["tensors"]["x"]
    entry["scale"] = 0.5
    written["tensors"] = {"x": [entry]}
    bench.file.write_text(json.dumps(written))
    out, _ = bench.run("--config", "A8W8", "--fast", "--data", bench.data, "--ranges", bench.file)
    assert "Ranges as given: 1 tensors, of 1 grids in the file" in out
    after = bench.parameters()
    assert after["x"][0] == np.float32(0.5)
    activations = [name for name in before if name != "x" and not before[name][0].shape and name in after]
    assert activations
    weights_and_others = {name: (before[name][0], after[name][0]) for name in activations}
    assert any(np.array_equal(*pair) for pair in weights_and_others.values())


def test_encodings_in_the_form_of_other_tools(bench: Bench) -> None:
    """A file by hand: bits, offset from integers that begin at 0, and a tensor of a float type."""
    content = {
        "version": "0.6.1",
        "activation_encodings": {
            "x": [{"bitwidth": 8, "dtype": "int", "offset": -128, "scale": 0.25, "is_symmetric": "True"}],
            "other": [{"bitwidth": 16, "dtype": "float"}],
        },
        "param_encodings": {},
    }
    file = bench.folder / "m.encodings"
    file.write_text(json.dumps(content))
    bench.run("--config", "A8W8", "--fast", "--data", bench.data, "--ranges", file)
    scale, zero_point = bench.parameters()["x"]
    assert (float(scale), int(zero_point)) == (0.25, 0)
    bench.run("--config", "U8S8", "--fast", "--data", bench.data, "--ranges", file)
    scale, zero_point = bench.parameters()["x"]
    assert (float(scale), int(zero_point)) == (0.25, 128)


def change(bench: Bench, **values: object) -> None:
    """Write the ranges of the model with other values for one weight."""
    bench.run("--config", "A8W8", "--fast", "--data", bench.data, "--export-ranges", bench.file)
    written = json.loads(bench.file.read_text())
    name = next(name for name, (one,) in written["tensors"].items() if one["role"] == "weight")
    written["tensors"] = {name: [written["tensors"][name][0] | values]}
    bench.file.write_text(json.dumps(written))


@pytest.mark.parametrize(
    ("values", "message"),
    (
        ({"seen": [-9.0, 9.0]}, "are of other numbers: from -9 to 9, the model's go from"),
        ({"scale": [1.0, 2.0], "zero_point": [0, 0], "axis": 0}, "2 scales, its quantization has"),
        ({"scale": -1.0}, "scale -1.0 is not a positive number"),
        ({"scale": "a"}, "scale a is not a positive number"),
        ({"zero_point": 300}, "zero point 300 is not an integer of 8 bits"),
        ({"zero_point": 0.5}, "zero point 0.5 is not an integer of 8 bits"),
        ({"format": "bfp16"}, "format 'bfp16' has no scale"),
        ({"scale": 1e-38}, "is too small for the bias"),
    ),
)
def test_wrong_files_end_in_one_line(values: dict, message: str, bench: Bench) -> None:
    change(bench, **values)
    options = ("--config", "A8W8", "--fast", "--data", bench.data, "--ranges", bench.file)
    _, err = bench.run(*options, code=1)
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "text", ("", "[]", "{}", '{"form": "onnx-narrow ranges 1"}', '{"activation_encodings": 1}')
)
def test_what_is_no_such_file(text: str, bench: Bench) -> None:
    bench.file.write_text(text)
    _, err = bench.run("--config", "A8W8", "--data", bench.data, "--ranges", bench.file, code=1)
    assert f"'{bench.file}' cannot be read: " in err and err.count("\n") == 1


def test_a_file_of_another_model(bench: Bench) -> None:
    grid = TensorGrid("z", "activation", "int8", 8, None, np.float32(1).reshape(()), np.array(128))
    bench.file.write_text(to_text([grid]))
    _, err = bench.run("--config", "A8W8", "--data", bench.data, "--ranges", bench.file, code=1)
    assert "none of the 1 grids given is of a tensor that this scheme makes integers" in err


@pytest.mark.parametrize("encodings", (False, True))
def test_text_and_back(encodings: bool) -> None:
    """Scales survive as they are: the shortest decimal of a float64 that is a float32."""
    random = np.random.default_rng(5)
    scale = random.random(4).astype(np.float32) * np.float32(1e-3)
    grids = [
        TensorGrid("a", "activation", "uint8", 8, None, scale[0].reshape(()), np.array(7)),
        TensorGrid("w", "weight", "int4", 4, 0, scale, np.full(4, 8)),
    ]
    for one, back in zip(grids, from_text(to_text(grids, encodings=encodings)), strict=True):
        assert (back.name, back.role, back.bits) == (one.name, one.role, one.bits)
        assert np.array_equal(back.scale, one.scale) and np.array_equal(back.zero_point, one.zero_point)


def test_scales_that_outputs_change_later_are_not_exported(bench: Bench) -> None:
    """The file would say what is not in the model."""
    options = ("--config", "W4A8", "--data", bench.data, "--export-ranges", bench.file)
    _, err = bench.run(*options, code=1)
    assert "--export-ranges requires --fast here" in err and not bench.file.exists()
    bench.run(*options, "--fast")
    assert bench.file.exists()


def test_given_scales_of_few_bits_stay_with_samples_too(bench: Bench) -> None:
    """Scales by the layer's output error would replace them."""
    options = ("--config", "W4A8", "--data", bench.data)
    bench.run(*options, "--fast", "--export-ranges", bench.file)
    before = content(bench.target)
    out, _ = bench.run(*options, "--ranges", bench.file)
    assert "output error" not in out
    assert content(bench.target) == before


def test_the_export_needs_a_known_suffix(bench: Bench) -> None:
    options = ("--config", "A8W8", "--data", bench.data, "--export-ranges", bench.folder / "r.txt")
    _, err = bench.run(*options, code=1)
    assert "ends neither in .json nor .encodings" in err
