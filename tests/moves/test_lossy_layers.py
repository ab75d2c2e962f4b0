"""Layers that carry the loss stay float. Oracle: networks of which one layer reads numbers that no grid has.

Its SQNR is that of ONNX Runtime on samples that the job did not have.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_narrow
from tests.helpers import build
from tools.quantize import main
from transforms.judge.constants import FINE, PER_PERCENT, WORTH
from transforms.judge.errors import Errors
from transforms.moves.improve import Best
from transforms.moves.lossy_layers import price, seconds_of_search, try_lossy_layers
from transforms.pipelines import decide
from transforms.pipelines.asked import may_keep
from transforms.run.events import Events, Progress
from transforms.scheme import preset

SIZES = [16, 64, 64, 16, 16, 64, 64, 64, 16]
LOSSY = "gemm3"  # reads numbers of 16 channels, each of which is smaller than the last


def network(spread: float = 300.0) -> onnx.ModelProto:
    """Return x [4, 16] through 8 Gemms; the fourth makes up for channels that differ by ``spread``."""
    random, nodes, weights = np.random.default_rng(0), [], {}
    scales = np.geomspace(1, 1 / spread, 16).astype(np.float32)
    for i, (rows, columns) in enumerate(pairwise(SIZES)):
        weight = (random.standard_normal((rows, columns)) * np.sqrt(2 / rows)).astype(np.float32)
        weights[f"w{i}"] = weight * scales if i == 2 else weight / scales[:, None] if i == 3 else weight
        source, made = "x" if i == 0 else f"r{i - 1}", "y" if i == len(SIZES) - 2 else f"g{i}"
        nodes.append(helper.make_node("Gemm", [source, f"w{i}"], [made], f"gemm{i}"))
        if made != "y":
            nodes.append(helper.make_node("Relu", [made], [f"r{i}"], f"relu{i}"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 16]) for name in "xy"]
    return build.model(nodes, ends[:1], ends[1:], weights, opset=17)


def samples(count: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((4, 16)).astype(np.float32)} for _ in range(count)]


MODEL, DATA = network(), samples(8)
MOVE = (try_lossy_layers,)
GIVEN = {"data": DATA, "moves": MOVE, "time": False}


def sqnr(model: onnx.ModelProto) -> float:
    sessions = [onnxruntime.InferenceSession(one.SerializeToString()) for one in (MODEL, model)]
    pairs = [[one.run(None, feed)[0].astype(np.float64) for one in sessions] for feed in samples(32, 2)]
    error = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / error))


@pytest.mark.parametrize("config", ["U8S8", "A8W8"])
def test_the_layer_that_carries_the_loss_stays_float_and_its_scheme_rebuilds(config: str) -> None:
    made = onnx_narrow.quantize(MODEL, config=config, **GIVEN)
    assert list(made.scheme.layers) == [LOSSY]
    plain = onnx_narrow.quantize(MODEL, config=config, **{**GIVEN, "moves": ()})
    assert not plain.scheme.layers and sqnr(made.model) > sqnr(plain.model) + 6
    again = onnx_narrow.quantize(MODEL, config=made.scheme, **GIVEN)
    assert again.model.graph == made.model.graph and not again.decided
    (line,) = [line for line in made.notes if line.startswith("In float, for accuracy: ")]
    assert line.startswith("In float, for accuracy: 1 of 8 layers (+") and line.endswith(f": '{LOSSY}'")
    assert made.notes[made.notes.index(line) + 1] == f"  exclude_nodes='{LOSSY}'"
    excluded = onnx_narrow.quantize(MODEL, config=config, exclude_nodes=[LOSSY], **GIVEN)
    assert sqnr(excluded.model) == pytest.approx(sqnr(made.model), abs=0.5)


def test_moves_after_it_are_compared_with_the_layers_in_float() -> None:
    seen = []

    def _move(best: Best) -> None:
        seen.append(np.array_equal(best.errors.errors, best.form.errors(best.scheme).errors))

    onnx_narrow.quantize(MODEL, config="U8S8", **{**GIVEN, "moves": (try_lossy_layers, _move)})
    assert seen == [True]


def test_probabilities_that_hide_the_loss_are_judged_before_the_softmax() -> None:
    """They are one or zero whatever the layers do, and were as good as float ones."""
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    node = next(node for node in model.graph.node if node.output[0] == "y")
    node.output[0] = "logits"
    reach = max(
        np.abs(onnxruntime.InferenceSession(MODEL.SerializeToString()).run(None, feed)).max() for feed in DATA
    )
    sure = np.where(np.arange(16) == 3, 4 * reach, 0).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(sure, "sure"))
    model.graph.node.append(helper.make_node("Add", ["logits", "sure"], ["surer"]))
    model.graph.node.append(helper.make_node("Softmax", ["surer"], ["y"]))
    plain = onnx_narrow.quantize(model, config="U8S8", **{**GIVEN, "moves": ()})
    sessions = [onnxruntime.InferenceSession(one.SerializeToString()) for one in (model, plain.model)]
    wanted, found = ([one.run(None, feed)[0] for feed in DATA] for one in sessions)
    error = sum(np.square(a - b).sum() for a, b in zip(wanted, found, strict=True))
    assert 10 * np.log10(sum(np.square(a).sum() for a in wanted) / error) > FINE
    made = onnx_narrow.quantize(model, config="U8S8", **GIVEN)
    assert LOSSY in made.scheme.layers


def test_no_layer_stays_float_where_none_carries_the_loss() -> None:
    made = onnx_narrow.quantize(network(1.0), config="U8S8", **GIVEN)
    assert not made.scheme.layers and not [line for line in made.notes if "for the outputs" in line]


@pytest.mark.parametrize(
    "how",
    [
        {"fast": True},
        {"min_sqnr": 1.0, "fallback": "int16"},
        {"target": "openvino"},
        {"config": "A16W8"},
        {"data": DATA[:3]},
        {"config": preset("U8S8").with_(keep_float=False)},
    ],
)
def test_what_asks_for_something_else_stays_as_it_is(how: dict[str, object]) -> None:
    """Three samples are too few for two halves that tell a standard error."""
    given = {"config": "U8S8", "time": False, "data": DATA, **how}
    made = onnx_narrow.quantize(MODEL, **given)  # type: ignore[arg-type]
    assert not made.scheme.layers


def test_given_ranges_stay_as_they_are(tmp_path: Path) -> None:
    ranges = tmp_path / "ranges.json"
    onnx_narrow.quantize(MODEL, config="U8S8", data=DATA, fast=True, time=False, export_ranges=ranges)
    made = onnx_narrow.quantize(MODEL, config="U8S8", ranges=ranges, **GIVEN)
    assert not made.scheme.layers


def test_schemes_that_are_tuned_do_not_ask() -> None:
    asking = [name for name in ("U8S8", "A8W8", "A16W8", "BF16", "W8") if may_keep(preset(name))]
    assert asking == ["U8S8", "A8W8"] and not may_keep(preset("U8S8_ADAQUANT"))


@pytest.mark.parametrize(
    ("run", "runs", "said"),
    [(0.1, 10, "about 5 s in all"), (0.02, 200, "about 4 s in all"), (1.0, 10**6, "about 256 s in all")],
)
def test_a_search_says_about_how_long_it_takes(
    run: float, runs: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By runs of so many seconds each: as many as the budget has, and no fewer than 48 or more than 256."""
    notes = _notes(monkeypatch, run, runs)
    onnx_narrow.quantize(MODEL, config="U8S8", **GIVEN, progress=notes)
    assert notes.seen == [said]


@pytest.mark.parametrize(
    "more", [{"moves": ()}, {"data": samples(3)}, {"assignments": {"keep_float": False}}]
)
def test_a_search_that_ranks_no_layers_says_nothing(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = _notes(monkeypatch, 1.0, 100)
    onnx_narrow.quantize(MODEL, config="U8S8", **{**GIVEN, **more}, progress=notes)
    assert notes.seen == []


class Notes(Events):
    """Collects the notes of phases."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def phase(self, name: str, unit: str = "") -> Progress:
        def _show(done: int, total: int | None, note: str = "") -> None:
            self.seen += [note] if note else []

        return _show


def _notes(monkeypatch: pytest.MonkeyPatch, run: float, runs: int) -> Notes:
    """Return what collects notes of a job whose runs take so many seconds, with so many in its budget."""

    def _seconds(best: Best) -> float:
        best.form.model.seconds, best.budget.whole = run, runs
        return seconds_of_search(best)

    monkeypatch.setattr(decide, "seconds_of_search", _seconds)
    return Notes()


def test_a_price_is_of_bytes_and_of_layers() -> None:
    assert price(0.0, 2) == pytest.approx(2 * WORTH) == pytest.approx(price(-0.1, 2))
    assert price(0.1, 1) - price(0.0, 1) == pytest.approx(10 * PER_PERCENT)


def test_what_is_better_than_fine_counts_nothing() -> None:
    errors = Errors(np.array([[1e-9, 0.5]]), np.ones((1, 2)), 2).at_most(FINE)
    assert errors.decibels == pytest.approx([FINE, 10 * np.log10(2)])


def test_the_command_spells_patterns_as_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(MODEL, tmp_path / "m.onnx")
    for i, feed in enumerate(DATA):
        np.savez(tmp_path / f"{i}.npz", **feed)
    files = [
        "--input",
        str(tmp_path / "m.onnx"),
        "--output",
        str(tmp_path / "q.onnx"),
        "--data",
        str(tmp_path),
    ]
    steps = ["--config", "U8S8", "--no-time", "--verbose", "--set", "move_outliers=false"]
    assert main([*files, *steps, "--set", "equalize_layers=false"]) == 0
    assert f"\n  --exclude-node {LOSSY}\n" in capsys.readouterr().out
