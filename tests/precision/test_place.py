"""Layers that are faster in float. Oracle: a machine with given times; the real one for names of kernels."""

from __future__ import annotations

from functools import partial

import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import origins, tunable
from tests.helpers.clock import Clock
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph.dot_products import is_dot_product
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.precision import place as module
from transforms.precision.chosen import FloatLayers
from transforms.precision.finer_scheme import names_of
from transforms.precision.pair_nodes import PairedModels
from transforms.precision.place import faster_in_float
from transforms.run.profile import Kernel
from transforms.run.turns import Timing
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme, preset

MODEL = origins.chain(layers=8)
FEEDS = origins.feeds(4)
SCHEME = preset("U8S8").by_rule()


def placed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> FloatLayers:
    monkeypatch.setattr(module, "profiled", clock.profiled)
    floats, graph, done = origins.quantized(MODEL, SCHEME, FEEDS)
    assert done.scheme is not None

    def _build(scheme: Scheme) -> gs.Graph | None:
        built = model_io.load(MODEL)
        return built if quantize_graph(built, scheme, CalibrationData(FEEDS[:1])).count else None

    first, names = (graph, done.scheme), partial(names_of, partial(model_io.load, MODEL), done.scheme)
    return faster_in_float(first, floats, names, _build, FEEDS[0], RunOptions(threads=1), clock.timer)


def test_slow_layers_beside_each_other_and_apart_stay_float(monkeypatch: pytest.MonkeyPatch) -> None:
    found = placed(Clock({1: 6.0, 2: 6.0, 5: 4.0}), monkeypatch)
    assert found.layers == ("gemm1", "gemm2", "gemm5") and found.count == 8
    assert set(found.scheme.layers) >= {"gemm1", "gemm2", "gemm5"} and "gemm0" not in found.scheme.layers
    assert found.ratio is not None
    assert found.ratio.median == pytest.approx((6 + 5 + 6 * 0.1) / (16 + 5 + 2 * 0.1))
    assert found.more_bytes > 0


def test_a_layer_whose_borders_cost_more_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = placed(Clock({3: 3.0}, border=1.0), monkeypatch)
    assert found.layers == () and found.ratio is None and found.more_bytes == 0
    assert found.scheme == SCHEME.with_(layers=found.scheme.layers) and not found.scheme.layers


@pytest.mark.parametrize(("between", "layers"), [(3.0, 3), (6.0, 1)])
def test_a_layer_between_two_is_with_them_unless_it_loses_more(between: float, layers: int) -> None:
    parts = [
        module._Segment([str(i)], {i - 1, i + 1}, 4.0, 2.0 if i != 1 else 4 + between - 1.5) for i in range(3)
    ]
    parts[0].beside, parts[2].beside, parts[0].before = {1}, {1}, 0.0
    regions = [[part.nodes[0] for part in region] for region in module._regions(parts)]
    assert len(regions[0]) == layers and len(regions) == (1 if layers == 3 else 2)


def test_layers_tried_together_are_told_apart_if_they_are_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    found = placed(Clock({1: 5.0, 5: 5.0}, floats={5: 12.0}, told={5: 2.0}), monkeypatch)
    assert found.layers == ("gemm1",)


def test_something_stays_in_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = placed(Clock(dict.fromkeys(range(8), 4.0)), monkeypatch)
    assert 0 < len(found.layers) < 8


@pytest.mark.parametrize(
    ("seconds", "jitter", "count", "timed"),
    [
        (2.3, (1.0,), 1, 1),
        (2.3, (1.0, 0.7, 1.3, 1.4), 1, 1),  # whatever else the machine does makes a run slower
        (2.3, (1.3,), 0, 1),
        (2.08, (1.0,), 0, 0),  # less than 1 %
    ],
)
def test_a_gain_is_beyond_the_noise(
    seconds: float, jitter: tuple[float, ...], count: int, timed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock({0: seconds}, border=0.0, jitter=jitter)
    assert len(placed(clock, monkeypatch).layers) == count
    assert clock.timed == timed


def test_nothing_is_tried_where_no_layer_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    assert not placed(clock, monkeypatch).layers and not clock.timed


def test_a_kernel_without_a_name_of_ours_belongs_to_the_part_after_it() -> None:
    names = ("Transpose", "~0~4/fused", "ReorderOutput", "~2~7~0_nchwc", "~~9", "last")
    kernels = [Kernel("op", name, float(10**i)) for i, name in enumerate(names)]
    assert module._seconds_by_segment(kernels) == {0: 11.0, 2: 111100.0}


CONV = tunable.conv_net()


@pytest.mark.parametrize(
    ("model", "feeds"), [(MODEL, FEEDS), (CONV, tunable.samples(CONV, 4))], ids=["gemm", "conv"]
)
def test_all_segments_are_found_in_profiles_of_both_models(
    model: onnx.ModelProto, feeds: origins.Feeds
) -> None:
    """Whatever the runtime's optimizer makes of nodes, kernels carry a name of what they were made of."""
    floats, graph, _ = origins.quantized(model, SCHEME.with_(target="ort-cpu"), feeds)
    parts = module._timed_segments(PairedModels(floats, graph), feeds[0], RunOptions(threads=1))
    assert len(parts) == sum(map(is_dot_product, model_io.load(model).nodes))
    assert all(part.seconds > 0 and part.before > 0 and part.nodes for part in parts)
    assert all(number in parts[other].beside for number, one in enumerate(parts) for other in one.beside)


def test_a_model_is_faster_if_it_is_so_in_three_of_four_rounds() -> None:
    assert module._is_faster(Timing(0.9, 0.8, 0.99, 8), 1.03)
    assert not module._is_faster(Timing(0.9, 0.8, 1.01, 8), 1.03)
    assert not module._is_faster(Timing(0.98, 0.97, 0.99, 8), 1.03)
