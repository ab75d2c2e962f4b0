"""Oracle: the model that the conversion makes with the same nodes excluded."""

from __future__ import annotations

import random
from glob import escape

import numpy as np
import onnx
import pytest

from tests.helpers import corpus, small_networks
from tests.helpers.spread import spread
from transforms import model_io
from transforms.conversion.convert_bf16 import Bf16Options
from transforms.lift_constants import lift_constants
from transforms.precision.bf16_error import Bf16Error, SwitchedRounding
from transforms.runtime import session

FORMATS = ("with_cast", "bf16", "simulate_bf16", "customqdq")


def measure(model: onnx.ModelProto, options: Bf16Options, count: int = 1) -> Bf16Error:
    graph = model_io.load(model)
    lift_constants(graph)
    return Bf16Error(graph, options, [corpus.feeds(model)] * count)


def choices(count: int, tries: int) -> list[set[int]]:
    """Return nothing, everything, and some sets between, the same ones each time."""
    draw = random.Random(count)
    some = [{i for i in range(count) if draw.random() < 0.5} for _ in range(tries)]
    return [set(), set(range(count)), *some]


def differences(error: Bf16Error, options: Bf16Options, tries: int) -> list[tuple[list[str], float, float]]:
    """Return the choices for which switches do not give the SQNR that the conversion gives, with both.

    Float sums come in another order where excluding a node undoes a fusion: a value may then fall on the
    other side of a rounding, which 0.01 dB leave room for in models of a few nodes. Beyond 110 dB, two units
    in the last place of a float32, there is nothing but that order.
    """
    switched, found = SwitchedRounding(error, options), []
    for kept in choices(len(switched.parts), tries):
        excluded = [escape(name) for i in kept for name in switched.parts[i].names]
        pair = switched.keeping(kept), error.keeping(excluded)
        if pair[0] != pytest.approx(pair[1], abs=0.01) and min(pair) < 110:
            found.append((excluded, *pair))
    return found


@pytest.mark.parametrize("name", spread(sorted(corpus.MODELS.keys() - {"sequence output"}), of=3))
def test_switches_compute_what_the_conversion_does(name: str) -> None:
    """Control flow, outputs that are used further, tensors tied to float32: each model has one difficulty."""
    error = measure(corpus.build(name), Bf16Options())
    assert not differences(error, error.options, tries=1)


NETWORKS = {"residual": small_networks.residual(), "branches": small_networks.branches()}


@pytest.mark.parametrize(("name", "form"), spread(NETWORKS, FORMATS, of=3))
def test_switches_stand_for_fused_nodes(name: str, form: str) -> None:
    options = Bf16Options(form)
    assert not differences(measure(NETWORKS[name], options, 2), options, tries=4)


@pytest.mark.parametrize(
    "options",
    (
        Bf16Options(saturate_activations=True),
        Bf16Options(optimize=False),
        Bf16Options(exclude_op=("Relu", "MatMul")),
        Bf16Options(exclude_node=("conv",), weights="float32"),
        Bf16Options("simulate_bf16", exclude_node=("conv",)),
    ),
)
def test_switches_know_the_options_of_the_conversion(options: Bf16Options) -> None:
    assert not differences(measure(NETWORKS["residual"], options), options, tries=4)


def test_saturation_is_part_of_it() -> None:
    """Without the Clips a square of 1e20 is infinite in the output, and so is the error."""
    model = corpus.parse("(float[1] x) => (float[1] y) { [square] a = Mul(x, x) [root] y = Sqrt(a) }")
    graph = model_io.load(model)
    feed = {"x": np.array([1.8442e19], np.float32)}
    for clipped in (False, True):
        options = Bf16Options(saturate_activations=clipped)
        switched = SwitchedRounding(Bf16Error(graph, options, [feed]), options)
        assert (switched.keeping(()) > 20) == clipped


def test_parts_are_what_is_fused() -> None:
    def parts(model: onnx.ModelProto, **changes: object) -> list[tuple[list[str], list[str]]]:
        options = Bf16Options(**changes)  # type: ignore[arg-type]
        return [(part.names, part.ends) for part in SwitchedRounding(measure(model, options), options).parts]

    alone = [([name], [name]) for name in ("relu[0]", "add", "pool", "flat")]
    folded, joined = (["conv", "norm"], ["norm"]), (["dense", "bias"], ["bias"])
    assert parts(NETWORKS["residual"]) == [folded, *alone, joined]
    assert len(parts(NETWORKS["residual"], optimize=False)) == 8
    assert parts(NETWORKS["residual"], exclude_node=("conv", "add")) == [
        (["norm"], ["norm"]),
        *(one for one in alone if one != (["add"], ["add"])),
        joined,
    ]
    assert [names for names, _ in parts(NETWORKS["branches"])] == [["t"], ["q", "k"], ["v", "y"], ["u"]]


def test_nothing_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    error = measure(NETWORKS["branches"], Bf16Options())
    switched = SwitchedRounding(error, error.options)
    value, whole = switched.keeping({1, 2}), error.keeping(["q", "k"])
    monkeypatch.setattr(Bf16Error, "of", lambda *arguments: pytest.fail("measured again"))
    assert switched.keeping([2, 1]) == value
    assert error.keeping(("k", "q")) == whole


def test_samples_can_be_left_out() -> None:
    """Every second of four samples are the first and the third."""
    graph, feeds = model_io.load(NETWORKS["residual"]), small_networks.images(4)
    all_four, two = (Bf16Error(graph, Bf16Options(), some) for some in (feeds, feeds[::2]))
    half = SwitchedRounding(all_four, Bf16Options()).keeping((0, 2), every=2)
    assert half == SwitchedRounding(two, Bf16Options()).keeping((0, 2))
    assert half != SwitchedRounding(all_four, Bf16Options()).keeping((0, 2))


def test_weights_beyond_one_message_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both branches of a switch hold a weight: the model is twice what it was, in one message."""
    error = measure(NETWORKS["residual"], Bf16Options())
    monkeypatch.setattr(session, "PROTOBUF_LIMIT", 2000)
    with pytest.raises(ValueError, match=r"^the model has [\d,]+ bytes beside its shared weights, too many"):
        SwitchedRounding(error, error.options)
