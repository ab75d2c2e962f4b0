"""Oracle: models converted with every choice of nodes excluded, and with the nodes that were found."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import chain, combinations

import numpy as np
import onnx
import pytest

from tests.helpers import corpus, small_networks
from transforms import model_io
from transforms.conversion.convert_bf16 import Bf16Options
from transforms.precision import bf16 as module
from transforms.precision import bf16_error
from transforms.precision.bf16 import KeptFloat, keep_float
from transforms.precision.bf16_error import Bf16Error, SwitchedRounding
from transforms.search.target import TargetError

FORMATS = ("with_cast", "bf16", "simulate_bf16", "customqdq")
FEEDS = small_networks.images()
ROWS = [{"x": np.random.default_rng(1).normal(20, 1, (4, 8)).astype(np.float32)}]
NAMES = ("conv", "norm", "relu[[]0]", "add", "pool", "flat", "dense", "bias")


def keep(model: onnx.ModelProto, least: float, options: Bf16Options | None = None) -> KeptFloat:
    return keep_float(model_io.load(model), options or Bf16Options(), FEEDS, least)


def every_choice(error: Bf16Error, names: Sequence[str]) -> dict[tuple[str, ...], float]:
    sets = chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))
    return {kept: error.keeping(kept) for kept in sets}


EXCLUDED = Bf16Options(exclude_node=("pool", "flat", "bias"))
OPEN = tuple(name for name in NAMES if name not in EXCLUDED.exclude_node)


@pytest.fixture(scope="module")
def choices() -> dict[tuple[str, ...], float]:
    """The SQNR of the network for each of 32 choices, every one of them converted and run."""
    return every_choice(Bf16Error(model_io.load(small_networks.residual()), EXCLUDED, FEEDS), OPEN)


@pytest.mark.parametrize("more", (0.5, 2, 5, 10, 20))
def test_the_smallest_choice_is_found(more: float, choices: dict[tuple[str, ...], float]) -> None:
    least = choices[()] + more
    found = keep(small_networks.residual(), least, EXCLUDED)
    assert found.before == choices[()]
    assert found.after == choices[found.patterns] >= least
    assert len(found.patterns) == min(len(kept) for kept, value in choices.items() if value >= least)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_held_to_the_target(form: str) -> None:
    """The figure is that of the model converted anew with the patterns that are returned."""
    options = Bf16Options(form)
    model = small_networks.residual()
    error = Bf16Error(model_io.load(model), options, FEEDS)
    least = error.keeping(()) + 3
    found = keep(model, least, options)
    again = Bf16Error(model_io.load(model), options.excluding(found.patterns), FEEDS)
    assert found.patterns
    assert again.keeping(()) == found.after >= least > found.before == error.keeping(())


def test_nothing_is_kept_where_bf16_is_good_enough() -> None:
    found = keep(small_networks.residual(), 20)
    assert (found.patterns, found.before) == ((), found.after)


def test_nodes_without_a_name_go_by_what_they_make() -> None:
    model = small_networks.residual(named=False)
    found = keep(model, keep(model, 0).before + 5)
    assert set(found.patterns) <= {"a", "n", "r", "q", "p", "f", "e", "y"}
    assert found.patterns
    named = dict(zip(("a", "n", "r", "q", "p", "f", "e", "y"), NAMES, strict=True))
    twin = keep(small_networks.residual(), found.before + 5)
    assert twin.patterns == tuple(named[pattern] for pattern in found.patterns)


def test_patterns_match_one_name_each() -> None:
    """Brackets in a name are not taken for a set of letters."""
    model = small_networks.residual()
    found = keep(model, 100)
    names = [node.name for node in model.graph.node]
    assert "relu[[]0]" in found.patterns
    assert all(sum(fnmatchcase(name, pattern) for name in names) == 1 for pattern in found.patterns)


def test_what_the_user_excludes_stays_excluded_and_is_not_named() -> None:
    model = small_networks.residual()
    options = Bf16Options(exclude_node=("conv", "norm"), exclude_op=("GlobalAveragePool",))
    before = keep(model, 0, options).before
    found = keep(model, before + 3, options)
    assert before > keep(model, 0).before
    assert found.patterns
    assert not {"conv", "norm", "pool"} & set(found.patterns)


def test_a_target_out_of_reach_is_told_with_both_figures() -> None:
    """A normalisation that stays float is one node all the same, and sums in another order."""
    with pytest.raises(
        TargetError,
        match=r"^no choice of nodes kept in float32 meets the target of at least 190 dB: "
        r"sqnr [\d.]+ dB with none kept, sqnr [\d.]+ dB with all$",
    ):
        keep_float(model_io.load(small_networks.normalisation()), Bf16Options(), ROWS, 190)


def test_a_float16_model_is_measured_against_itself() -> None:
    """Inputs and outputs are float16 behind Casts, which stay float with the nodes beside them."""
    graph = model_io.load(small_networks.residual(dtype=np.float16))
    feeds = small_networks.images(dtype=np.float16)
    error = Bf16Error(graph, Bf16Options(), feeds)
    best = error.keeping("*")
    found = keep_float(graph, Bf16Options(), feeds, (error.keeping(()) + best) / 2)
    assert best > error.keeping(()) + 6
    assert found.after == error.keeping(found.patterns) >= (error.keeping(()) + best) / 2


def test_a_model_without_float_output_is_refused() -> None:
    model = corpus.parse("(float[N] x) => (int64[N] y) { a = Tanh(x) y = Cast <to = 7> (a) }")
    with pytest.raises(ValueError, match=r"^the model has no float output to measure the SQNR of$"):
        keep_float(model_io.load(model), Bf16Options(), [{"x": np.ones(2, np.float32)}], 30)


def test_the_graph_is_not_changed() -> None:
    graph = model_io.load(small_networks.residual())
    before = model_io.graph_proto.export_model(graph).SerializeToString(deterministic=True)
    keep_float(graph, Bf16Options(), FEEDS, 50)
    assert model_io.graph_proto.export_model(graph).SerializeToString(deterministic=True) == before


IF = """(float[N] x, bool c) => (float[N] y)
    <float s = {0.3}> { [first] a = Sin(x)
    [branch] b = If (c) <then_branch = t () => (float[N] p) { [deep] d = Exp(a) [low] p = Mul(d, s) },
                         else_branch = e () => (float[N] p) { [other] p = Identity(a) }>
    [last] y = Sub(b, a) }"""


def test_nodes_in_bodies_are_kept_one_by_one_and_the_node_around_them_only_if_needed() -> None:
    """What an If hands out is rounded unless the If is kept, with all that is in it."""
    model = corpus.parse(IF)
    feeds = [{"x": np.linspace(0.1, 2, 64, dtype=np.float32), "c": np.array(True)}]
    graph = model_io.load(model)
    error = Bf16Error(graph, Bf16Options(), feeds)
    without = error.keeping(["first", "deep", "low", "last"])
    inside = keep_float(graph, Bf16Options(), feeds, (error.keeping(()) + without) / 2)
    assert "branch" not in inside.patterns
    around = keep_float(graph, Bf16Options(), feeds, without + 3)
    assert "branch" in around.patterns
    assert not {"deep", "low"} & set(around.patterns)


def test_a_fused_normalisation_is_kept_as_a_whole() -> None:
    """Kept in part it would be rounded inside, where a variance cancels; kept whole it stays one node."""
    found = keep_float(model_io.load(small_networks.normalisation()), Bf16Options(), ROWS, 80)
    assert found.patterns == ("mean", "centre", "square", "variance", "positive", "deviation", "normal")
    assert found.after > 80 > 60 > found.before


def test_the_written_model_decides_where_switches_say_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is told 99 dB for anything keeps nothing; more is then kept until the target holds."""
    model = small_networks.residual()
    least = keep(model, 0).before + 5
    honest = keep(model, least)
    monkeypatch.setattr(SwitchedRounding, "keeping", lambda self, parts, every=1: 99.0)
    found = keep(model, least)
    assert found.after >= least
    assert len(found.patterns) >= len(honest.patterns)
    error = Bf16Error(model_io.load(model), Bf16Options(), FEEDS)
    rest = set(found.patterns)
    assert all(error.keeping(rest - {pattern}) < least for pattern in rest), "none can be given up"


def test_all_parts_are_kept_where_switches_say_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwitchedRounding, "keeping", lambda self, parts, every=1: 0.0)
    model = small_networks.residual()
    found = keep(model, keep(model, 0).before + 1)
    assert set(found.patterns) == set(NAMES) - {"conv", "dense"}, "by the ends of what is fused"


def test_a_model_that_the_runtime_refuses_counts_as_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no model ran that keeps the Flatten: the search goes on without it."""
    model = small_networks.residual()
    keeping = Bf16Error.keeping

    def _refused(self: Bf16Error, patterns: Sequence[str]) -> float:
        if "pool" in patterns:
            raise ValueError("ONNX Runtime refuses the model")
        return keeping(self, patterns)

    least = keep(model, 0).before + 2
    monkeypatch.setattr(Bf16Error, "keeping", _refused)
    assert keep(model, least).after >= least


def test_samples_that_the_search_leaves_out_count_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two samples is 8 dB worse: a search on the other alone keeps too little."""
    monkeypatch.setattr(module, "_SEARCHED_ON", 1)
    monkeypatch.setattr(module, "_RANKED_ON", 1)
    model, least = small_networks.residual(), keep(small_networks.residual(), 0).before + 4
    assert keep(model, least).after >= least


def test_progress_counts_models() -> None:
    told: list[tuple[int, str]] = []
    model = small_networks.branches()
    feeds = [{"x": np.random.default_rng(2).standard_normal((2, 4)).astype(np.float32)}]
    keep_float(model_io.load(model), Bf16Options(), feeds, 60, progress=lambda *done: told.append(done))
    assert [count for count, _ in told] == list(range(1, len(told) + 1))
    assert all(note.endswith(" dB") for _, note in told)
    assert bf16_error.Bf16Error(model_io.load(model), Bf16Options(), feeds).keeping(()) < 60
