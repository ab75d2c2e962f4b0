"""Steps that a user leaves out, adds and reorders. Oracle: the files of the options that do the same."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import pytest

import onnx_narrow
from onnx_narrow.api.result import Result
from tests.helpers import tunable
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.rows import Row
from transforms.moves.improve import Best
from transforms.pipelines.bf16 import BF16
from transforms.pipelines.decide import MOVES
from transforms.pipelines.mix import MIX
from transforms.pipelines.options import Options
from transforms.pipelines.recipes import FAST, QUANTIZE
from transforms.pipelines.retune import TUNE
from transforms.pipelines.source import Source
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.plan.scheme_targets import SchemeTargets
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
    left_out = ("decide", "place", "beside_preset", "compare")
    steps = [row for row in onnx_narrow.QUANTIZE if row.name not in left_out]
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

    place = [row.name for row in QUANTIZE].index("build") + 1
    steps = [*QUANTIZE[:place], my_step, *QUANTIZE[place:]]
    result = onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, steps=steps)
    assert "QuantizeLinear" in seen[0] and result.model.graph.output[0].name == "renamed"
    names = [name for name, seconds in result.steps if seconds >= 0]
    assert names.index("my_step") == names.index("build") + 1


def test_moves_are_those_that_are_given(model: Path) -> None:
    def my_move(best: Best) -> None:
        best.try_schemes("mine", [("per tensor", best.scheme.with_(per_channel=False))])

    given = {"config": "A8W8", "data": SAMPLES}
    every = {one.move for one in onnx_narrow.quantize(model, **given).decided}
    headroom = [move for move in MOVES if move.__name__ == "try_headroom"]
    some = onnx_narrow.quantize(model, moves=[*headroom, my_move], **given)
    assert {one.move for one in some.decided} - {"full range", "layers in float"} <= {"headroom", "mine"}
    assert "mine" in {one.move for one in some.decided} and "mine" not in every
    none = onnx_narrow.quantize(model, moves=(), **given)
    assert {one.move for one in none.decided} <= {"full range"}


def test_conversion_and_tuning_are_lists_of_steps_too(model: Path) -> None:
    """Oracle: the operators that a user's step sees, before and after the step that makes them."""
    seen: list[set[str]] = []

    def look(work: Work) -> None:
        seen.append({node.op for node in work.graph.nodes})

    converted = onnx_narrow.convert_bf16(model, steps=[*BF16[:2], look, BF16[2], look, *BF16[3:]])
    assert "Cast" not in seen[0] and "Cast" in seen[1]
    assert [name for name, _ in converted.steps] == [*("load_float", "look", "convert", "look", "try_out")]
    quantized = onnx_narrow.quantize(model, config="MX6")
    tuned = onnx_narrow.finetune(
        model, quantized, data=SAMPLES, algorithm="gptq", steps=[TUNE[0], look, *TUNE[1:]]
    )
    assert "DequantizeLinear" not in seen[2] and len(seen) == 3
    names = [name for name, _ in tuned.steps]
    assert names == ["load_pair", "look", "tune_quantized", "try_out", "compare"]


def test_steps_of_another_work_say_what_they_need(model: Path) -> None:
    with pytest.raises(TypeError, match="this step takes a Bf16Work"):
        onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, steps=BF16)


def test_fast_and_steps_are_two_words_for_one_thing(model: Path) -> None:
    with pytest.raises(ValueError, match="fast and steps cannot be combined"):
        onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, fast=True, steps=QUANTIZE)


def test_a_step_before_those_that_it_needs_says_so(model: Path) -> None:
    unnamed = [row for row in QUANTIZE if row.name != "name_targets"]
    with pytest.raises(ValueError, match="needs targets: step 'name_targets' comes first"):
        onnx_narrow.quantize(model, config="A8W8", data=SAMPLES, steps=unnamed)


def test_work_that_tells_nobody_is_tuned(model: Path) -> None:
    scheme, tuning = preset("A8W8").by_rule(), preset("A8W8_ADAQUANT").finetune
    samples, options = CalibrationData(SAMPLES), Options(tuning=tuning)
    work = Work(gs.Graph(), scheme, samples, source=Source(model), options=options)
    tuned = run(work, FAST).record.tuned
    assert tuned is not None and [layer.name for layer in tuned.walk.layers] == LAYERS


JOBS: dict[str, tuple[Sequence[Row[Any]], Callable[[Path, Sequence[Row[Any]]], Result]]] = {
    "A8W8": (QUANTIZE, lambda path, rows: onnx_narrow.quantize(path, data=SAMPLES, steps=rows)),
    "W8": (QUANTIZE, lambda path, rows: onnx_narrow.quantize(path, config="W8", steps=rows)),
    "ort-cpu": (
        QUANTIZE,
        lambda path, rows: onnx_narrow.quantize(path, target="ort-cpu", data=SAMPLES, steps=rows),
    ),
    "BF16": (BF16, lambda path, rows: onnx_narrow.convert_bf16(path, steps=rows)),
    "mixed": (
        MIX,
        lambda path, rows: onnx_narrow.mix_precision(
            path, config="A16W8", target=["int8"], sqnr_target=30, data=SAMPLES, steps=rows
        ),
    ),
    "tuned": (
        TUNE,
        lambda path, rows: onnx_narrow.finetune(
            path, _quantized(path), data=SAMPLES, algorithm="gptq", steps=rows
        ),
    ),
}


SHORT = [pytest.param(job, marks=pytest.mark.heavy if job in ("W8", "ort-cpu") else ()) for job in JOBS]


@cache
def _quantized(path: Path) -> onnx.ModelProto:
    return onnx_narrow.quantize(path, config="MX6").model


def _swapped(rows: Sequence[Row[Any]]) -> Iterator[tuple[str, Sequence[Row[Any]]]]:
    for i, (row, following) in enumerate(itertools.pairwise(rows)):
        yield f"{following.name} before {row.name}", [*rows[:i], following, row, *rows[i + 2 :]]


@pytest.mark.parametrize("job", SHORT)
def test_two_steps_swapped_make_the_same_or_say_which_comes_first(job: str, model: Path) -> None:
    rows, make = JOBS[job]
    graph = make(model, rows).model.graph
    for what, swapped in _swapped(rows):
        try:
            assert make(model, swapped).model.graph == graph, what
        except ValueError as error:
            assert _names_a_step(error, rows), what


@pytest.mark.parametrize("job", SHORT)
def test_a_step_left_out_leaves_a_model_of_its_scheme_or_is_named(job: str, model: Path) -> None:
    """Oracle of those that decide something: the file that the recorded scheme makes with all steps."""
    rows, make = JOBS[job]
    graph = make(model, rows).model.graph
    for i, row in enumerate(rows):
        try:
            result = make(model, [*rows[:i], *rows[i + 1 :]])
        except ValueError as error:
            assert _names_a_step(error, rows), row.name
            continue
        if result.model.graph != graph:
            again = onnx_narrow.quantize(model, config=result.scheme, data=SAMPLES)
            assert again.model.graph == result.model.graph, row.name


def _names_a_step(error: ValueError, rows: Sequence[Row[Any]]) -> bool:
    first = re.search(r"(?:step '(\w+)' comes first|comes after step '(\w+)')$", str(error))
    return first is not None and (first[1] or first[2]) in {row.name for row in rows}


def test_rows_are_entered_where_their_operators_and_options_occur(model: Path) -> None:
    entered: list[str] = []

    def look(work: Work) -> int:
        entered.append("asked")
        return 0

    def ask(work: Work) -> int:
        entered.append("not asked")
        return 0

    rows: list[Row[Work]] = [
        Row(look, frozenset({"Gemm"}), line="Gemms seen"),
        Row(ask, frozenset({"LSTM"})),
        Row(ask, when=lambda work: work.data is None),
    ]
    result = onnx_narrow.quantize(model, data=SAMPLES, steps=[*QUANTIZE[:-2], *rows, *QUANTIZE[-2:]])
    assert entered == ["asked"] and [name for name, _ in result.steps].count("look") == 1


def test_a_row_of_the_user_s_may_give_what_another_gives(model: Path) -> None:
    def own_targets(work: Work) -> None:
        work.targets = SchemeTargets(work.graph, work.scheme)

    row: Row[Work] = Row(own_targets, gives=("targets",))
    own = [row if step.name == "name_targets" else step for step in QUANTIZE]
    result, usual = (onnx_narrow.quantize(model, data=SAMPLES, steps=steps) for steps in (own, QUANTIZE))
    assert result.model.graph == usual.model.graph
