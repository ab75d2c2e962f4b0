"""Oracle: the nodes listed here, by the tensor that they make; ONNX Runtime's outputs on other samples."""

from __future__ import annotations

import re

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import plans
from transforms.pipelines.why_nothing import why_nothing
from transforms.plan import float_only_nodes
from transforms.plan.float_only_nodes import spectra
from transforms.scheme import preset

BINS, BANDS, WINDOW = 17, 8, 32
"""A spectrum of sounds in windows, its power in bands, and a convolution of their logarithms."""

TEXT = """(float[1, 1, 512] x) => (float[1, 4, 31] y)
    <int64[1] axis = {{1}}, int64[2] first = {{0, 17}}, float two = {{2}}, float[1] low = {{1e-9}}> {{
    p = Conv <strides = [16]> (x, wave) re, im = Split <axis = 1, num_outputs = 2> (p)
    rr = Mul(re, re) ii = Pow(im, two) s = Add(rr, ii) t = Transpose <perm = [0, 2, 1]> (s)
    b = MatMul(t, bands) f = {floor} g = Log(f) u = Transpose <perm = [0, 2, 1]> (g)
    c = Conv(u, w) r = Relu(c) y = Conv(r, v) }}"""
FRONT = {"p", "re", "rr", "ii", "s", "t", "b", "f"}


def _weights() -> plans.Weights:
    places, bins = np.arange(WINDOW), np.arange(BINS)[:, None]
    waves = [np.cos(2 * np.pi * bins * places / WINDOW), np.sin(2 * np.pi * bins * places / WINDOW)]
    wave = (np.concatenate(waves) * np.hanning(WINDOW)).astype(np.float32)[:, None]
    bands = np.abs(np.random.default_rng(1).standard_normal((BINS, BANDS))).astype(np.float32)
    return {"wave": wave, "bands": bands, "w": (6, BANDS, 1), "v": (4, 6, 1)}


def _text(floor: str = "Max(b, low)") -> str:
    return TEXT.format(floor=floor)


def zone(text: str) -> set[str]:
    graph = plans.graph(text, _weights())
    found = spectra(graph)
    return plans.made_by(graph, found)


@pytest.mark.parametrize("floor", ("Max(b, low)", "Clip(b, two)", "Add(b, low)", "Abs(b)", "Sqrt(b)"))
def test_what_a_logarithm_is_taken_of(floor: str) -> None:
    assert zone(_text(floor)) == FRONT


@pytest.mark.parametrize("floor", ("Relu(b)", "Sigmoid(b)", "Clip(b, two, two)", "Softmax(b)", "Min(b, low)"))
def test_an_activation_on_the_way_makes_it_a_layer(floor: str) -> None:
    assert zone(_text(floor)) == set()


def test_a_bound_at_zero_is_an_activation() -> None:
    assert zone(_text("Max(b, low)").replace("1e-9", "0")) == set()


def test_a_product_of_two_computed_tensors_is_a_layer() -> None:
    text = _text().replace("b = MatMul(t, bands)", "k = MatMul(s, t) a = MatMul(t, k) b = MatMul(a, bands)")
    assert zone(text) == set()


@pytest.mark.parametrize("config", ("A8W8", "U8S8", "A16W8", "W8", "BFP16", "MX6", "MXFP8E4M3"))
def test_no_integers_and_no_blocks_are_in_it(config: str) -> None:
    places = plans.reads(plans.plan(_text(), _weights(), config))
    assert not FRONT & {place.split(".")[0] for place in places}
    assert {"c.1", "y.1"} <= places.keys()


def test_a_scheme_for_every_value_reaches_it_too() -> None:
    planned = plans.plan(_text(), _weights(), "W4A8", quantize_all_op_types=True, finer_share=0.0)
    places = plans.reads(planned)
    assert {places[place] for place in ("p.1", "b.1", "c.1", "y.1")} == {"int4"}
    assert {places[place] for place in ("p.0", "b.0", "c.0", "y.0")} == {"int8"}


@pytest.mark.parametrize("config", ("A8W8", "W8", "BFP16"))
def test_a_model_that_is_nothing_else_says_why(config: str) -> None:
    text = _text().split("u = Transpose")[0].replace("[1, 4, 31] y", "[1, 31, 8] g") + "}"

    def _load() -> gs.Graph:
        return plans.graph(text, {name: _weights()[name] for name in ("wave", "bands")})

    reasons = list(why_nothing(_load, preset(config)))
    assert any(re.match(r"Ruined by equal steps .*Conv 1.*MatMul 1", line) for line in reasons)


def test_float_types_reach_every_value() -> None:
    places = plans.reads(plans.plan(_text(), _weights(), "BF16"))
    assert {"p.0", "p.1", "b.0", "b.1", "c.0"} <= places.keys()


@pytest.mark.parametrize("config", ("A8W8", "U8S8"))
def test_quiet_parts_of_a_spectrum_are_kept(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sounds of few tones over weak noise: their bands differ by 60 dB, and steps of eight bits by 42."""
    random = np.random.default_rng(3)

    def _sound() -> dict[str, np.ndarray]:
        time = np.arange(512)
        tone = np.sin(time * random.uniform(0.2, 1.5)) * 10 ** random.uniform(-2, 0)
        return {"x": (tone + 1e-3 * random.standard_normal(512)).astype(np.float32)[None, None]}

    feeds = [_sound() for _ in range(24)]

    def _decibels() -> float:
        scheme = preset(config).with_(keep_float=False)
        return plans.decibels(plans.graph(_text(), _weights()), scheme, feeds)

    kept = _decibels()
    monkeypatch.setattr(float_only_nodes, "spectra", lambda graph: set())
    assert kept > _decibels() + 10
