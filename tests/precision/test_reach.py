"""Oracle: the SQNR of the models that come out, by NumPy, on samples that the search did not have."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

import onnx_narrow
from tests.helpers import origins, plans
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph.constants import bytes_of_numbers
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.precision import reach as module
from transforms.precision import unreached
from transforms.precision.bench import Bench
from transforms.precision.chosen import Reached
from transforms.precision.finer_scheme import fallback_rule, names_of
from transforms.precision.held_out import hold_out
from transforms.precision.reach import reach_target
from transforms.precision.unreached import too_few_samples
from transforms.run.run_model import open_model
from transforms.scheme import Scheme, preset
from transforms.scheme.layer_rule import LayerRule
from transforms.search.target import FloatAloneError, Scored, Target, TargetError

MODEL = origins.chain(layers=8)
FEEDS = origins.feeds(16)
LOSSY = preset("U8S8").by_rule().with_(per_channel=False, weight_method="MinMax")


def reach(
    scheme: Scheme,
    target: Target,
    fallback: str = "float32",
    model: onnx.ModelProto = MODEL,
    data: origins.Feeds = FEEDS,
    searched: origins.Feeds | None = None,
) -> Reached:
    """Search on all samples but those that judge, or on others."""
    apart = hold_out(CalibrationData(data), model_io.load(model))
    graph = model_io.load(model)
    done = run(Work(graph, scheme, apart.data, options=Options(keeps_float=True)), IN_MEMORY)
    assert done.scheme is not None and done.base.graph is not None

    def _build(again: Scheme) -> tuple[gs.Graph, Scheme]:
        built = model_io.load(model)
        quantize_graph(built, again, apart.data)
        return built, again

    feeds = searched or [feed for _, feed in apart.data.feeds(graph)]
    rule = fallback_rule(fallback, done.scheme)
    first, names = (graph, done.scheme), partial(names_of, partial(model_io.load, model), done.scheme)
    return reach_target(first, done.base.graph, names, _build, feeds, apart.feeds, target, rule)


def sqnr(graph: gs.Graph, feeds: origins.Feeds) -> float:
    runs = [open_model(one).run for one in (model_io.load(MODEL), graph)]
    pairs = [[run(feed)["y"].astype(np.float64) for run in runs] for feed in feeds]
    error = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / error))


@pytest.mark.parametrize("fallback", ["float32", "int16", "bf16"])
def test_the_target_is_met_on_held_out_samples_with_the_layers_that_lose(fallback: str) -> None:
    found = reach(LOSSY, Target("sqnr", 24.0), fallback)
    assert [part.name for part in found.layers] == ["gemm2", "gemm3"] and found.count == 8  # that spread
    assert found.before < 24 <= found.after - found.error
    held_out = FEEDS[3::4]
    assert sqnr(found.graph, held_out) == pytest.approx(found.after, abs=0.1)
    assert found.bytes_after > found.bytes_before
    assert set(found.scheme.layers) == {"gemm2", "gemm3"}


@pytest.mark.parametrize("name", ["W4A8", "A8W8", "W2"])
def test_numbers_of_few_bits_share_bytes(name: str) -> None:
    """Oracle: what onnx stores for the initializers."""
    graph = model_io.load(MODEL)
    quantize_graph(graph, preset(name).by_rule(), CalibrationData(FEEDS))
    stored = model_io.graph_proto.export_model(graph).graph.initializer
    numbers = sum(len(tensor.raw_data) for tensor in stored if tensor.raw_data)
    assert all(tensor.raw_data for tensor in stored)
    assert bytes_of_numbers(graph) == numbers


def test_nothing_is_finer_where_the_target_is_met_anyway() -> None:
    found = reach(LOSSY, Target("sqnr", 0.0))
    assert found.layers == () and found.before == found.after


def test_a_higher_target_takes_more_layers() -> None:
    counts = [len(reach(LOSSY, Target("sqnr", limit)).layers) for limit in (27.0, 34.0)]
    assert counts[0] < counts[1] < 8


def test_a_model_hardly_smaller_than_float_is_refused_with_what_smaller_ones_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in (module, unreached):
        monkeypatch.setattr(place, "LARGEST", 0.6)
    with pytest.raises(FloatAloneError) as caught:
        reach(LOSSY, Target("sqnr", 34.0))
    said = r"not met in 0.6 of the bytes .*: sqnr \d+.* in 0.5 of them \(\d layers\), sqnr .* in 0.6 of them"
    assert re.search(said, str(caught.value)) and "allow_large takes more" in str(caught.value)


def test_allow_large_takes_a_model_that_is_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (module, unreached):
        monkeypatch.setattr(place, "LARGEST", 0.6)
    asked = {"config": LOSSY, "data": FEEDS, "min_sqnr": 30, "time": False}
    with pytest.raises(FloatAloneError, match="allow_large takes more"):
        onnx_narrow.quantize(MODEL, **asked)
    result = onnx_narrow.quantize(MODEL, allow_large=True, **asked)
    assert any(note.startswith("Target of at least 30 dB") for note in result.notes)


def test_no_layer_more_than_needed_is_finer() -> None:
    """Oracle: the same search, told to reach the target with one layer less, of those that it ranks first."""
    found = reach(LOSSY, Target("sqnr", 30.0))
    least = reach(LOSSY, Target("sqnr", found.after - found.error))
    assert len(least.layers) == len(found.layers) == 2


def test_a_share_of_rows_is_a_target_too() -> None:
    found = reach(LOSSY, Target("lost_top1", 0.0))
    runs = [open_model(one).run for one in (model_io.load(MODEL), found.graph)]
    for feed in FEEDS[3::4]:
        a, b = (run(feed)["y"].argmax(-1) for run in runs)
        assert (a == b).all()


STATES = """(float[4,16] x, float[4,16] past_h)
    => (float[4,16] {0}, float[4,16] present_h, float[4] energy) {{
    a = MatMul (x, w) b = Mul (a, spread) {0} = MatMul (b, v) k = MatMul (past_h, u)
    present_h = Tanh (k) energy = ReduceMean <axes = [1], keepdims = 0> (present_h) }}"""


@pytest.mark.parametrize("name", ["hidden", "next_state", "y"])
def test_a_target_holds_for_each_output_whatever_its_name(name: str) -> None:
    """The output that is bad is small beside the other, and one that is fed back counts as well."""
    random = np.random.default_rng(2)
    spread = np.exp(2 * random.standard_normal(16)).astype(np.float32) / 1000
    weights = {"w": (16, 16), "spread": spread, "v": (16, 16), "u": (16, 16)}
    model = plans.model(STATES.format(name), weights, opset=17)
    data = [
        {one: random.standard_normal((4, 16)).astype(np.float32) for one in ("x", "past_h")} for _ in "a" * 16
    ]
    found = reach(preset("A8W8").by_rule(), Target("sqnr", 32.0), model=model, data=data)
    runs = [open_model(one).run for one in (model_io.load(model), found.graph)]
    made = [[run(feed) for run in runs] for feed in data[3::4]]
    levels = []
    for output in (name, "present_h", "energy"):
        exact, other = (np.array([pair[i][output] for pair in made], np.float64) for i in (0, 1))
        levels.append(10 * np.log10(np.square(exact).sum() / np.square(exact - other).sum()))
    assert found.left_out == () and found.before < 32 <= found.after
    assert min(levels) == pytest.approx(found.after, abs=0.1)


@pytest.mark.parametrize("limit", [20.0, 27.0])
def test_each_attempt_keeps_more_layers_where_samples_of_the_search_show_no_error(limit: float) -> None:
    """Zeros are exact in every format, whatever the target is raised to."""
    found = reach(LOSSY, Target("sqnr", limit), searched=[{"x": np.zeros_like(FEEDS[0]["x"])}])
    assert found.before < limit <= found.after and 0 < len(found.layers) < found.count


@pytest.mark.parametrize("limit", [90.0, 200.0])
def test_a_target_that_only_float_meets_is_refused(limit: float) -> None:
    with pytest.raises(TargetError, match=r"layers? in float32"):
        reach(LOSSY, Target("sqnr", limit))


def test_a_fallback_that_is_the_format_is_refused() -> None:
    with pytest.raises(ValueError, match="fallback 'bf16': the formats of this scheme are bfloat16 already"):
        fallback_rule("bf16", preset("BF16"))
    assert fallback_rule("int16", preset("U8S8")).activation == "uint16"
    assert fallback_rule("int16", preset("A8W8")).activation == "int16"
    for name, weight in (("float32", "float32"), ("int16", "int16"), ("bf16", "bfloat16")):
        assert fallback_rule(name, preset("W4")) == LayerRule("float32", weight)


@pytest.mark.parametrize(
    ("count", "held"),
    [
        (4, [1, 3]),
        (7, [1, 3, 5]),
        (8, [1, 3, 5, 7]),
        (11, [1, 3, 5, 7, 9]),
        (12, [2, 5, 8, 11]),
        (15, [2, 5, 8, 11, 14]),
        (16, [3, 7, 11, 15]),
        (40, list(range(3, 40, 4))),
        (300, list(range(3, 128, 4))),
    ],
)
def test_samples_that_judge_a_goal_are_held_out(count: int, held: list[int]) -> None:
    """Beyond the last that judges, others of its kind are neither here nor there."""
    period = held[0] + 1
    feeds = [{"x": np.full((1, 16), place, np.float32)} for place in range(count)]
    apart = hold_out(CalibrationData(feeds), model_io.load(MODEL))
    rest = [feed for _, feed in apart.data.feeds(model_io.load(MODEL))]
    assert apart.is_apart and [int(feed["x"][0, 0]) for feed in apart.feeds] == held
    assert [int(feed["x"][0, 0]) for feed in rest] == [i for i in range(count) if i % period != period - 1]
    assert len(apart.data.feeds(model_io.load(MODEL))) == len(rest)


def test_of_three_samples_none_is_held_out() -> None:
    data = CalibrationData(FEEDS[:3])
    apart = hold_out(data, model_io.load(MODEL))
    assert not apart.is_apart and len(apart.feeds) == 3 and apart.data is data


@pytest.mark.parametrize("count", [2, 8, 40])
def test_in_folds_all_samples_give_ranges_and_the_first_judge(count: int) -> None:
    data = CalibrationData([{"x": np.full((1, 16), place, np.float32)} for place in range(count)])
    apart = hold_out(data, model_io.load(MODEL), in_folds=True)
    assert apart.data is data and [int(one["x"][0, 0]) for one in apart.feeds] == list(range(min(count, 32)))
    assert apart.where == f"{min(count, 32)} samples held out in {min(count, 4)} folds" and not apart.is_apart


def test_a_reader_cannot_be_held_out() -> None:
    with pytest.raises(ValueError, match="cannot be read twice"):
        hold_out(replace(CalibrationData(FEEDS), source=iter(FEEDS)), model_io.load(MODEL))


def test_each_search_after_one_that_fell_short_takes_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of the search are content with two layers; those that judge are not, twice."""
    told = map(Scored, [20.0, 26.9, 26.9, 27.0])
    monkeypatch.setattr(Bench, "scored", lambda self, graph: next(told))
    assert len(reach(LOSSY, Target("sqnr", 27.0)).layers) == 4


def test_samples_that_meet_a_target_by_chance_do_not_show_it() -> None:
    """One of four samples that judge has numbers beyond the ranges of the others."""
    data = [dict(feed) for feed in FEEDS]
    data[3] = {"x": 2 * data[3]["x"]}
    far = [{"x": 2 * feed["x"]} for feed in origins.feeds(32)[16:]]
    scheme = preset("A8W8").by_rule()
    first = reach(scheme, Target("sqnr", 0.0), data=data)
    target = Target("sqnr", first.before - first.error / 2)
    assert first.layers == () and target.holds(first.before) and first.error > 1
    assert sqnr(first.graph, far) < target.limit, "as many are elsewhere, and the target was missed there"
    found = reach(scheme, target, data=data)
    assert found.layers and found.after - found.error >= target.limit


def test_it_is_said_how_many_more_samples_would_show_a_target() -> None:
    """With all layers in 16 bits one sample of four still holds the error."""
    with pytest.raises(
        TargetError,
        match=r"^4 samples cannot show the target of at least 27 dB: sqnr 31\.\d+ \+- 8\.\d dB with 8 of 8 "
        r"layers in uint16/int16; about 12 more that judge would: give 64 samples or more$",
    ):
        reach(LOSSY, Target("sqnr", 27.0), "int16")


def test_in_folds_all_that_are_given_judge() -> None:
    error = too_few_samples(Target("sqnr", 30.0), Scored(32.0, 3.0, 8, in_folds=True), "with all")
    assert str(error).endswith("about 10 more that judge would: give 18 samples or more")


def test_where_no_samples_would_do_it_is_said_what_is_shown() -> None:
    error = too_few_samples(Target("sqnr", 30.0), Scored(30.5, 2.0, 4), "with all")
    assert str(error).endswith(
        "sqnr 30.5 +- 2 dB with all: sqnr 28.5 dB is shown, and no more than 32 samples judge"
    )
