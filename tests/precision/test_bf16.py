"""Oracles: the SQNR of models converted anew with the nodes that were found; what the scheme BF16 finds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import onnx
import pytest

from ops.array_types import Feed
from tests.helpers import corpus, small_networks
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.fuse_layernorm import fuse_layernorm
from transforms.lift_constants import lift_constants
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.in_memory import IN_MEMORY
from transforms.pipelines.options import Options
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work
from transforms.precision.bf16 import KeptFloat, keep_float, names_as_loaded
from transforms.precision.finer_scheme import fallback_rule, names_of
from transforms.precision.reach import reach_target
from transforms.run.run_model import open_model
from transforms.scheme import Scheme, preset
from transforms.search.target import Target, TargetError
from transforms.widen_bf16 import widen_bf16

FORMATS = ("with_cast", "bf16", "simulate_bf16", "customqdq")
FEEDS = small_networks.images(14)
SEARCHED, HELD_OUT = FEEDS[:6], FEEDS[6:]
ROWS = [{"x": np.random.default_rng(1).normal(20, 1, (4, 8)).astype(np.float32)}]
NAMES = ("conv", "norm", "relu[[]0]", "add", "pool", "flat", "dense", "bias")
PLAIN = Bf16Options()


def keep(model: onnx.ModelProto, least: float, options: Bf16Options = PLAIN) -> KeptFloat:
    return keep_float(model_io.load(model), options, SEARCHED, HELD_OUT, Target("sqnr", least))


def sqnr(
    model: onnx.ModelProto, patterns: Sequence[str], feeds: Sequence[Feed], options: Bf16Options = PLAIN
) -> float:
    """Return the SQNR of the only output of the model converted with these nodes excluded."""
    graph = model_io.load(model)
    lift_constants(graph)
    convert_bf16(graph, options.excluding(patterns))
    widen_bf16(graph)
    runs = [open_model(one).run for one in (model_io.load(model), graph)]
    pairs = [[next(iter(run(feed).values())).astype(np.float64) for run in runs] for feed in feeds]
    error = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / error)) if error else np.inf


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_held_to_the_target_on_samples_that_were_not_searched_on(form: str) -> None:
    model, options = small_networks.residual(), Bf16Options(form)
    before = sqnr(model, (), HELD_OUT, options)
    found = keep(model, before + 3, options)
    assert 0 < len(found.layers) < found.count and found.patterns
    assert found.before == pytest.approx(before, abs=0.01)
    assert found.after == pytest.approx(sqnr(model, found.patterns, HELD_OUT, options), abs=0.01)
    assert found.after >= before + 3


def test_both_doors_to_bf16_name_the_same_layers() -> None:
    """The scheme BF16 and the conversion round the same numbers, so the same search finds the same."""
    model, searched, held_out = small_networks.residual(), SEARCHED, HELD_OUT
    loaded, scheme = model_io.load(model), preset("BF16").by_rule()
    graph = model_io.load(model)
    done = run(Work(graph, scheme, CalibrationData(searched), options=Options(keeps_float=True)), IN_MEMORY)
    assert done.scheme is not None and done.base.graph is not None

    def _build(again: Scheme) -> tuple[object, Scheme]:
        built = model_io.load(model)
        quantize_graph(built, again, CalibrationData(searched))
        return built, again

    least = keep_float(loaded, PLAIN, searched, held_out, Target("sqnr", 0)).before + 2
    converted = keep_float(loaded, PLAIN, searched, held_out, Target("sqnr", least))
    quantized = reach_target(
        (graph, done.scheme),
        done.base.graph,
        lambda: names_of(lambda: model_io.load(model), done.scheme),
        _build,
        searched,
        held_out,
        Target("sqnr", least),
        fallback_rule("float32", done.scheme),
        allow_large=True,
    )
    assert 0 < len(converted.layers) < converted.count == quantized.count
    assert converted.layers == quantized.layers
    assert converted.after == pytest.approx(quantized.after, abs=0.01)


def test_nothing_is_kept_where_bf16_is_good_enough() -> None:
    found = keep(small_networks.residual(), 20)
    assert (found.patterns, found.layers, found.before) == ((), (), found.after)


def test_nodes_are_kept_where_a_target_may_be_met_by_chance() -> None:
    model = small_networks.residual()
    first = keep(model, 0)
    least = first.before - first.error / 2
    found = keep(model, least)
    assert first.error > 0.1 and found.before > least
    assert found.patterns and found.after - found.error >= least


def test_nodes_without_a_name_go_by_what_they_make() -> None:
    model = small_networks.residual(named=False)
    found = keep(model, keep(model, 0).before + 5)
    named = dict(zip(("a", "n", "r", "q", "p", "f", "e", "y"), NAMES, strict=True))
    twin = keep(small_networks.residual(), found.before + 5)
    assert found.patterns
    assert twin.patterns == tuple(named[pattern] for pattern in found.patterns)


def test_patterns_match_one_name_each() -> None:
    """Brackets in a name are not taken for a set of letters."""
    graph = model_io.load(small_networks.residual())
    prepared = copy_graph(graph)
    names = [name for found in names_as_loaded(graph, prepared).values() for name in found]
    assert sorted(names) == sorted([*(node.name for node in graph.nodes), "bias"]), "bias makes the output"
    found = keep(small_networks.residual(), keep(small_networks.residual(), 0).before + 12)
    every = [node.name for node in graph.nodes]
    assert all(sum(fnmatchcase(name, pattern) for name in every) == 1 for pattern in found.patterns)


def test_what_the_user_excludes_stays_excluded_and_is_not_named() -> None:
    model = small_networks.residual()
    options = Bf16Options(exclude_node=("conv", "norm"), exclude_op=("GlobalAveragePool",))
    before = keep(model, 0, options).before
    found = keep(model, before + 3, options)
    assert before == pytest.approx(sqnr(model, (), HELD_OUT, options), abs=0.01)
    assert found.patterns
    assert not {"conv", "norm", "pool"} & set(found.patterns)


def test_a_target_out_of_reach_is_told_with_both_figures() -> None:
    with pytest.raises(
        TargetError,
        match=r"^no choice of nodes kept in float32 meets the target of at least 190 dB: "
        r"sqnr [\d.]+ dB with none kept, sqnr [\d.]+ dB with all$",
    ):
        keep_float(model_io.load(small_networks.normalisation()), PLAIN, ROWS, ROWS, Target("sqnr", 190))


def test_a_float16_model_is_measured_against_itself() -> None:
    """Inputs and outputs are float16 behind Casts, which stay float with the nodes beside them."""
    graph = model_io.load(small_networks.residual(dtype=np.float16))
    feeds = small_networks.images(14, dtype=np.float16)
    least = keep_float(graph, PLAIN, feeds[:6], feeds[6:], Target("sqnr", 0)).before + 2
    found = keep_float(graph, PLAIN, feeds[:6], feeds[6:], Target("sqnr", least))
    assert found.patterns
    assert sqnr(small_networks.residual(dtype=np.float16), found.patterns, feeds[6:]) >= least


def test_a_model_without_float_output_is_refused() -> None:
    model = corpus.parse("(float[N] x) => (int64[N] y) { a = Tanh(x) y = Cast <to = 7> (a) }")
    feeds = [{"x": np.ones(2, np.float32)}]
    with pytest.raises(ValueError, match=r"^the model has no output of a floating type to hold to a target$"):
        keep_float(model_io.load(model), PLAIN, feeds, feeds, Target("sqnr", 30))


def test_the_graph_is_not_changed() -> None:
    graph = model_io.load(small_networks.residual())
    before = model_io.graph_proto.export_model(graph).SerializeToString(deterministic=True)
    keep_float(graph, PLAIN, SEARCHED, HELD_OUT, Target("sqnr", 50))
    assert model_io.graph_proto.export_model(graph).SerializeToString(deterministic=True) == before


IF = """(float[N] x, bool c) => (float[N] y)
    <float s = {0.3}> { [first] a = Sin(x)
    [branch] b = If (c) <then_branch = t () => (float[N] p) { [deep] d = Exp(a) [low] p = Mul(d, s) },
                         else_branch = e () => (float[N] p) { [other] p = Identity(a) }>
    [last] y = Sub(b, a) }"""


def test_nodes_with_bodies_are_kept_only_if_needed() -> None:
    """What an If hands out is rounded unless the If is kept, with all that is in it."""
    model = corpus.parse(IF)
    feeds = [{"x": np.linspace(0.1, 2, 64, dtype=np.float32), "c": np.array(True)}]
    graph = model_io.load(model)
    before, outside = (sqnr(model, kept, feeds) for kept in ((), ("first", "last")))
    inside = keep_float(
        graph, PLAIN, feeds, feeds, Target("sqnr", (before + outside) / 2 if outside > before else before)
    )
    assert "branch" not in inside.patterns
    around = keep_float(graph, PLAIN, feeds, feeds, Target("sqnr", max(before, outside) + 1))
    assert "branch" in around.patterns
    assert sqnr(model, around.patterns, feeds) >= max(before, outside) + 1


def test_a_fused_normalisation_is_kept_as_a_whole() -> None:
    """Kept in part it would be rounded inside, where a variance cancels."""
    graph = model_io.load(small_networks.normalisation())
    whole = ["centre", "deviation", "mean", "normal", "positive", "square", "variance"]
    prepared = copy_graph(graph)
    assert fuse_layernorm(prepared) == 1
    (names,) = {tuple(sorted(found)) for found in names_as_loaded(graph, prepared).values()}
    assert list(names) == whole


def test_progress_counts_models() -> None:
    told: list[tuple[int, str]] = []
    graph = model_io.load(small_networks.residual())
    least = keep(small_networks.residual(), 0).before + 3
    keep_float(
        graph, PLAIN, SEARCHED, HELD_OUT, Target("sqnr", least), progress=lambda *done: told.append(done)
    )
    assert [count for count, _ in told] == list(range(1, len(told) + 1)) and len(told) >= 3
    assert all(note.endswith((" dB", "no error")) for _, note in told)


def test_samples_that_are_too_few_even_in_float_are_told() -> None:
    """A float16 model rounds inputs and outputs, of one of two samples more than of the other."""
    graph, feeds = (
        model_io.load(small_networks.residual(dtype=np.float16)),
        small_networks.images(8, np.float16),
    )
    with pytest.raises(TargetError, match=r"^no choice of nodes") as caught:
        keep_float(graph, PLAIN, feeds[:6], feeds[6:], Target("sqnr", 500))
    (most,) = re.findall(r"sqnr ([\d.]+) dB with all$", str(caught.value))
    with pytest.raises(
        TargetError,
        match=r"^2 samples cannot show .* \+- \S+ dB with every node in float32; about \d+ more that",
    ):
        keep_float(graph, PLAIN, feeds[:6], feeds[6:], Target("sqnr", float(most) - 2))
