"""Steps that a user leaves out, adds and reorders. Oracle: the files of the options that do the same."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_graphsurgeon as gs
import pytest

import onnx_narrow
from tests.helpers import tunable
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.moves.improve import Best
from transforms.pipelines.bf16 import BF16
from transforms.pipelines.build import build
from transforms.pipelines.compare import compare
from transforms.pipelines.decide import MOVES, decide
from transforms.pipelines.recipes import FAST, QUANTIZE
from transforms.pipelines.retune import TUNE
from transforms.pipelines.source import Source
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.scheme import preset

NETWORK = tunable.conv_net()
LAYERS = ["conv", "depthwise", "transposed", "dense"]
SAMPLES = tunable.samples(NETWORK, 12)
USUAL = ["A8W8", "U8S8", "XINT8", "W4A8", "MX6", "BF16"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(NETWORK, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("config", USUAL)
def test_a_list_without_decide_is_the_fast_one_bit_for_bit(config: str, model: Path, tmp_path: Path) -> None:
    steps = [step for step in QUANTIZE if step not in (decide, compare)]
    given = {"config": config, "data": SAMPLES}
    onnx_narrow.quantize(model, tmp_path / "a.onnx", steps=steps, **given)
    onnx_narrow.quantize(model, tmp_path / "b.onnx", fast=True, **given)
    onnx_narrow.quantize(model, tmp_path / "c.onnx", steps=FAST, **given)
    files = [(tmp_path / f"{name}.onnx").read_bytes() for name in "abc"]
    assert files[0] == files[1] == files[2]


def test_a_step_of_the_user_s_runs_in_its_place_and_is_recorded(model: Path, tmp_path: Path) -> None:
    seen = []

    def my_step(work: Work) -> None:
        seen.append({node.op for node in work.graph.nodes})
        work.graph.outputs[0].name = "renamed"

    place = QUANTIZE.index(build) + 1
    steps = [*QUANTIZE[:place], my_step, *QUANTIZE[place:]]
    result = onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, steps=steps)
    assert "QuantizeLinear" in seen[0] and result.model.graph.output[0].name == "renamed"
    names = [name for name, seconds in result.steps if seconds >= 0]
    assert names == [step.__name__ for step in steps]


def test_moves_are_those_that_are_given(model: Path) -> None:
    def my_move(best: Best) -> None:
        best.try_schemes("mine", [("per tensor", best.scheme.with_(per_channel=False))])

    given = {"config": "A8W8", "data": SAMPLES}
    every = {one.move for one in onnx_narrow.quantize(model, **given).decided}
    biases = [move for move in MOVES if move.__name__ == "try_biases"]
    some = onnx_narrow.quantize(model, moves=[*biases, my_move], **given)
    assert {one.move for one in some.decided} - {"full range"} == {"biases", "mine"}
    assert every > {"biases"} and "mine" not in every
    none = onnx_narrow.quantize(model, moves=(), **given)
    assert {one.move for one in none.decided} <= {"full range"}


def test_conversion_and_tuning_are_lists_of_steps_too(model: Path) -> None:
    """Oracle: the operators that a user's step sees, before and after the step that makes them."""
    seen: list[set[str]] = []

    def look(work: Work) -> None:
        seen.append({node.op for node in work.graph.nodes})

    converted = onnx_narrow.convert_bf16(model, steps=[*BF16[:2], look, BF16[2], look, *BF16[3:]])
    assert "Cast" not in seen[0] and "Cast" in seen[1]
    assert [name for name, _ in converted.steps] == [
        *("load_float", "keep_layers", "look", "convert", "look", "try_out")
    ]
    quantized = onnx_narrow.quantize(model, config="MX6")
    tuned = onnx_narrow.finetune(
        model, quantized, data=SAMPLES, algorithm="gptq", steps=[TUNE[0], look, *TUNE[1:]]
    )
    assert "DequantizeLinear" not in seen[2] and len(seen) == 3
    assert [name for name, _ in tuned.steps] == [
        TUNE[0].__name__,
        "look",
        *(step.__name__ for step in TUNE[1:]),
    ]


def test_steps_of_another_work_say_what_they_need(model: Path) -> None:
    with pytest.raises(TypeError, match="this step takes a Bf16Work"):
        onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, steps=BF16)


def test_fast_and_steps_are_two_words_for_one_thing(model: Path) -> None:
    with pytest.raises(ValueError, match="fast and steps do not go together"):
        onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, fast=True, steps=QUANTIZE)


def test_a_step_before_those_that_it_needs_says_so(model: Path) -> None:
    with pytest.raises(ValueError, match="the step 'prepare' comes first"):
        onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, steps=[QUANTIZE[0], *QUANTIZE[2:]])


def test_work_that_tells_nobody_is_tuned(model: Path) -> None:
    scheme, tuning = preset("A8W8").by_rule(), preset("A8W8_ADAQUANT").finetune
    work = Work(gs.Graph(), scheme, CalibrationData(SAMPLES), source=Source(model), tuning=tuning)
    tuned = run(work, FAST).record.tuned
    assert tuned is not None and [layer.name for layer in tuned.walk.layers] == LAYERS
