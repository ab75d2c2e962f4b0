"""Masks that a model is fed. Oracle: the float model, in the places that are not masked."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers import build
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.sampled_exceptions import fed_masks
from transforms.run.run_model import open_model
from transforms.scheme import preset

RANDOM = np.random.default_rng(6)
W = RANDOM.standard_normal((8, 8)).astype(np.float32)
V = RANDOM.standard_normal((8, 5)).astype(np.float32) / 3
U = RANDOM.standard_normal((5, 3)).astype(np.float32)

FED = "(float[4,8] x, float[4,5] m) => (float[4,5] y)"
MADE = "(float[4,8] x, bool[4,5] k) => (float[4,5] y)"
LAYERS = "h = MatMul(x, w) g = MatMul(h, v)"
WHERE = "m = Where(k, low, zero)"


def _model(text: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> main {text}')
    constants = {"w": W, "v": V, "u": U, "low": np.float32(-1e9), "zero": np.float32(0)}
    read = {name for node in made.graph.node for name in node.input}
    for name in constants.keys() & read:
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(constants[name]), name))
    return made


def _feeds(made: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    """Return samples of which the first has nothing masked."""
    feeds = []
    for i in range(4):
        masked = (RANDOM.random((4, 5)) < 0.3) & (i > 0)
        feed: dict[str, np.ndarray] = {"x": RANDOM.standard_normal((4, 8)).astype(np.float32)}
        is_fed = made.graph.input[1].name == "m"
        feeds.append(feed | ({"m": np.where(masked, np.float32(-1e9), 0)} if is_fed else {"k": masked}))
    return feeds


@pytest.mark.parametrize("name", ["A8W8", "A16W8", "U8S8"])
@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        f"{FED} {{ {LAYERS} y = Add(g, m) }}",
        f"{FED} {{ {LAYERS} a = Add(g, m) y = Max(a, zero) }}",
        f"{FED} {{ {LAYERS} y = Gemm(h, v, m) }}",
        f"{MADE} {{ {LAYERS} {WHERE} y = Add(g, m) }}",
        f"{MADE} {{ {LAYERS} {WHERE} y = Gemm(h, v, m) }}",
    ],
)
def test_numbers_beside_a_mask_stay(text: str, optimized: bool, name: str) -> None:
    made = _model(text)
    feeds = _feeds(made)
    graph = model_io.load(made)
    quantize_graph(graph, preset(name).with_(optimize=optimized), CalibrationData(feeds))
    before, after = open_model(model_io.load(made)), open_model(graph)
    power = error = 0.0
    for feed in feeds:
        wanted, found = before.run(feed)["y"], after.run(feed)["y"]
        shown = wanted > -1e8
        assert (found[~shown] < -1e8).all()
        power += float((wanted[shown] ** 2).sum())
        error += float(((found - wanted)[shown] ** 2).sum())
    assert error < 1e-2 * power, "8 bits leave about 40 dB"


def test_what_stays_in_float_is_said_and_recorded() -> None:
    made = _model(f"{FED} {{ {LAYERS} y = Add(g, m) }}")
    done = quantize_graph(model_io.load(made), preset("A8W8"), CalibrationData(_feeds(made)))
    assert "Kept in float for masks in the samples: 'y'" in done.notes
    assert done.scheme is not None and done.scheme.tensors == {"y": "float32"}


@pytest.mark.parametrize(
    ("values", "is_mask"),
    [
        ([[0.0, 0.0], [0.0, -1e4]], True),
        ([[0.0, 3e38], [0.0, 0.0]], True),
        ([[0.0, 0.0], [0.0, 0.0]], False),
        ([[0.0, -9999.0]], False),
        ([[-1e9, -1e9]], False),
        ([[0.0, -1e9], [0.5, 0.0]], False),
        ([[0.0, -1e9], [0.0, -1e8]], False),
        ([[0.0, -np.inf]], False),
        ([[0.0, np.nan]], False),
    ],
)
def test_what_a_mask_is(values: list[list[float]], is_mask: bool) -> None:
    graph = model_io.load(build.dense(layers=1))
    feeds = [{graph.inputs[0].name: np.array(one, np.float32)} for one in values]
    found = fed_masks(graph, feeds)
    assert found.keys() == ({id(graph.inputs[0])} if is_mask else set())
