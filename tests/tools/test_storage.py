"""``--storage packed`` from the command line. Oracle: the same command without it, output bits and sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import tunable
from tools import auto_mixed_precision, finetune, infer, quantize, report
from transforms import model_io
from transforms.functions import DOMAIN

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = EXAMPLES / "digits.onnx"
IMAGES = np.load(EXAMPLES / "digits_test_images.npy")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    for i, image in enumerate(IMAGES[:24]):
        np.save(folder / f"{i:02}.npy", image[None])
    return folder


def made(tool: object, target: Path, *options: str) -> Path:
    assert tool.main(["--output", str(target), *options]) == 0  # type: ignore[attr-defined]
    return target


def output(path: Path) -> np.ndarray:
    """Return what a session without our library gives."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(str(path), options).run(None, {"images": IMAGES})[0]


def is_packed(path: Path) -> bool:
    return any(node.domain == DOMAIN for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("config", ["MX6", "BFP16", "MXINT8", "MXFP4E2M1", "BF16_BFP16"])
def test_same_outputs_from_a_smaller_file(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--input", str(MODEL), "--config", config)
    plain = made(quantize, tmp_path / "plain.onnx", *given)
    assert capsys.readouterr().out.startswith("Quantized") and not is_packed(plain)
    packed = made(quantize, tmp_path / "packed.onnx", *given, "--storage", "packed")
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Packed: ") and "bytes, " in said[0] and said[1].startswith("Left as float32: ")
    assert said[-1].endswith("needed: none (standard-operator functions inside; faster with ours)")
    assert is_packed(packed) and packed.stat().st_size < plain.stat().st_size
    assert output(packed).tobytes() == output(plain).tobytes()


def test_functions_that_decode_stay_with_no_functions(tmp_path: Path) -> None:
    given = ("--input", str(MODEL), "--config", "MX6", "--storage", "packed", "--no-functions")
    packed = made(quantize, tmp_path / "packed.onnx", *given)
    assert {function.domain for function in onnx.load(packed).functions} == {DOMAIN}


@pytest.mark.parametrize(
    "options",
    [
        ("--config", "W4A8", "--random-data", "2"),
        ("--config", "MX6", "--keep-weight-nodes"),
        ("--config", "BF16"),
    ],
)
def test_what_cannot_be_packed_is_said(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = made(quantize, tmp_path / "q.onnx", "--input", str(MODEL), *options, "--storage", "packed")
    words = "Packed: nothing, no weight is stored in a block format; integers have their bits already"
    assert words in capsys.readouterr().out.splitlines()
    assert not is_packed(target)


@pytest.mark.usefixtures("costs_here")
def test_tools_read_a_packed_model_as_any_other(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--input", str(MODEL), "--config", "MX6")
    plain = made(quantize, tmp_path / "plain.onnx", *given)
    packed = made(quantize, tmp_path / "packed.onnx", *given, "--storage", "packed")
    data, tuned, pages = ("--data", str(samples)), {}, {}
    for name, source in (("plain", plain), ("packed", packed)):
        models = ("--float", str(MODEL), "--quantized", str(source), *data)
        storage = ("--storage", "packed") if name == "packed" else ()
        tuned[name] = made(finetune, tmp_path / f"tuned_{name}.onnx", *models, *storage)
        pages[name] = made(report, tmp_path / f"{name}.html", *models)
        made(infer, tmp_path / name, "--input", str(source), *data)
    assert is_packed(tuned["packed"]) and not is_packed(tuned["plain"])
    assert output(tuned["packed"]).tobytes() == output(tuned["plain"]).tobytes()
    assert "mx6" in pages["packed"].read_text()
    for path in (tmp_path / "plain").iterdir():
        assert path.read_bytes() == (tmp_path / "packed" / path.name).read_bytes()


def test_mixed_precision(samples: Path, tmp_path: Path) -> None:
    given = ("--input", str(MODEL), "--data", str(samples), "--config", "BF16", "--target", "mx6")
    plain = made(auto_mixed_precision, tmp_path / "plain.onnx", *given)
    packed = made(auto_mixed_precision, tmp_path / "packed.onnx", *given, "--storage", "packed")
    assert is_packed(packed) and output(packed).tobytes() == output(plain).tobytes()


def test_quantizing_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--config", "MX6", "--storage", "packed")
    packed = made(quantize, tmp_path / "packed.onnx", "--input", str(MODEL), *given)
    assert quantize.main(["--input", str(packed), "--output", str(tmp_path / "q.onnx"), *given]) == 1
    assert "the model is quantized already" in capsys.readouterr().err


def test_weights_in_external_data(tmp_path: Path) -> None:
    model = tunable.conv_net()
    source = tmp_path / "float.onnx"
    onnx.save(model, source)
    given = ("--input", str(source), "--config", "MX9", "--save_as_external_data")
    graphs = [
        model_io.load(made(quantize, tmp_path / f"{storage}.onnx", *given, "--storage", storage))
        for storage in ("plain", "packed")
    ]
    weights = [
        {t.name: t.values.tobytes() for n in g.nodes for t in n.inputs if hasattr(t, "values")}
        for g in graphs
    ]
    assert weights[0] == weights[1]
