"""What reports advise, and how it is written. Oracle: the call by hand; keywords of the API; metadata."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_narrow.charts.report_style import stacked
from onnx_narrow.summaries.advice import helps
from onnx_narrow.summaries.advised_call import Door
from onnx_narrow.summaries.model_history import ModelHistory
from tests.helpers import origins
from tools import quantize
from tools.cli.job import parse
from transforms.origins.loss_causes import KEEP, MORE_BITS, OUTLIERS, PER_CHANNEL, SAMPLES, TUNE, Cause
from transforms.origins.loss_origins import LossOrigins, find_origins
from transforms.scheme import preset

FEEDS = origins.feeds()
GIVEN = {
    "model": "m.onnx",
    "output": Path("q.onnx"),
    "config": "U8S8",
    "data": "samples",
    "limit": 8,
    "mean": (1.5, 2),
    "image_size": (8, 9),
    "sequences": True,
    "states": {"a": "b"},
    "exclude_nodes": ["c", "d[*]"],
    "assignments": ["percentile=99.9"],
    "input_shapes": {"x": (1, 3)},
    "per_channel": False,
}
OFF: dict[str, object] = {"calibrate_method": "Percentile", "per_channel": False, "move_outliers": False}
BY_CHOICE: dict[str, object] = {"config": "U8S8", "set": ["move_outliers=false"]}
EVERYTHING = (KEEP, MORE_BITS, PER_CHANNEL, OUTLIERS, SAMPLES, TUNE)


@pytest.fixture(scope="module")
def found() -> LossOrigins:
    scheme = preset("U8S8").by_rule().with_(per_channel=False, weight_method="MinMax")
    reference, quantized, _ = origins.quantized(origins.chain(), scheme, FEEDS)
    found = find_origins(reference, quantized, FEEDS)
    causes = {place: Cause("words", 1.0, EVERYTHING) for place in found.main.named}
    return replace(found, causes=causes)


def made(options: dict[str, object], door: Door | None = None, **keys: object) -> ModelHistory:
    metadata = {"onnx_narrow.tool": "quantize", "onnx_narrow.options": json.dumps(options)}
    names = {f"gemm{i}" for i in range(5)}
    scheme = preset("U8S8").with_(**{**OFF, **keys})
    places = Path("m.onnx"), Path("q.onnx"), {"data": "samples"}, metadata, names, set[str]()
    return ModelHistory(*places, scheme, 4000, door or Door())


def test_a_call_in_python_is_that_of_the_command() -> None:
    assert Door(True, {"m.onnx": "model", "samples": "data"}).call("quantize", GIVEN) == (
        "onnx_narrow.quantize(model, 'q.onnx', config='U8S8', data=data, limit=8, mean=(1.5, 2), "
        "image_size=(8, 9), sequences=True, states={'a': 'b'}, exclude_nodes=['c', 'd[*]'], "
        "assignments=['percentile=99.9'], input_shapes={'x': (1, 3)}, per_channel=False)"
    )
    assert Door().call("quantize", GIVEN) == (
        "python -m tools.quantize --input m.onnx --output q.onnx --config U8S8 --data samples --limit 8 "
        "--mean 1.5,2 --image-size 8x9 --sequences --state a=b --exclude-node c --exclude-node 'd[*]' "
        "--set percentile=99.9 --input-shape x:1,3 --no-per-channel"
    )


def test_what_is_advised_is_read_as_it_was_meant() -> None:
    words = shlex.split(Door().call("quantize", GIVEN))[3:]
    read = parse(quantize.main.parser(), words).keywords()
    assert {**read, "output": str(read["output"]), "data": str(read["data"])} == {**GIVEN, "output": "q.onnx"}


def test_what_is_on_is_not_advised(found: LossOrigins) -> None:
    said = [what.partition(":")[0] for what, _ in helps(found, made(BY_CHOICE))]
    assert said[:2] == ["Keep in float", "16 bits"] and len(said) == 7
    was_tried = [what for what, _ in helps(found, made({"config": "U8S8"}))]
    assert len(was_tried) == 6 and "Move outliers into weights" not in was_tried
    on = {"per_channel": True, "move_outliers": True, "calibrate_method": "MinMax"}
    left = [what.partition(":")[0] for what, _ in helps(found, made({"config": "U8S8"}, **on))]
    assert left == [
        "Keep in float",
        "16 bits",
        "Tune weights",
        "Keep as few layers in float as a target needs",
    ]
    wide = made({"config": "U8S8"}, activation="int16", weight="int16", **on)
    assert "16 bits" not in [what.partition(":")[0] for what, _ in helps(found, wide)]


def test_prices_are_bytes_of_the_named_layers(found: LossOrigins) -> None:
    more = sum(found.layers[place].bytes_in_float for place in found.main.named)
    first = next(helps(found, made({"config": "U8S8"})))[0]
    assert first == f"Keep in float: +{more:,} bytes ({100 * more / 4000:+.0f} %)"


def test_a_scheme_that_was_an_object_is_advised_in_python(found: LossOrigins) -> None:
    calls = [call for _, call in helps(found, made({"config": "scheme"}))]
    assert len(calls) == 7 and all(call.startswith("onnx_narrow.") for call in calls)
    assert all("config=scheme" in call for call in calls if ".quantize(" in call)


def test_models_for_a_target_are_made_for_it_again(found: LossOrigins) -> None:
    calls = [call for _, call in helps(found, made({"config": ""}, target="ort-cpu"))]
    assert len(calls) == 5 and not any("move_outliers" in call for call in calls)
    assert all("--target ort-cpu" in call for call in calls if "tools.quantize" in call)


def test_on_small_screens_each_cell_names_its_column() -> None:
    style = stacked("layers", ["#", "", "SQNR, dB"])
    assert '.layers td:nth-child(3)::before{content:"SQNR, dB"}' in style and "nth-child(2)" not in style
