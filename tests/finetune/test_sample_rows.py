"""Oracle: ONNX Runtime runs the whole float model at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import tunable
from transforms.finetune.sample_rows import AHEAD, RowSampler, SampledRowReader, SampledRows
from transforms.layers.match_layers import match_layers
from transforms.layers.matched_layer import MatchedLayer
from transforms.model import graph_proto
from transforms.run import segmented_model
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.kept_arrays import ActivationStore
from transforms.run.run_model import open_model
from transforms.run.segmented_model import SegmentedRun

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 4)
FEW = RowSampler(len(DATA), most=1, least=40, seed=3)  # 10 rows of a sample

Taken = list[list[tuple[SampledRows, NDArray[Any]]]]


def _take(choice: RowSampler, ahead: int, store: ActivationStore, skipped: tuple[int, ...] = ()) -> Taken:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    layers, _ = match_layers(float_graph, quantized)
    with ActivationStore() as floats:
        model = SegmentedRun(float_graph, DATA, [layer.target for layer in layers], floats)
        reader = SampledRowReader(model, layers, choice, store, ahead)
        taken: Taken = []
        for number in range(len(layers)):
            if number in skipped:
                reader.forget(number)
            taken.append([] if number in skipped else list(reader.read(number, last=True)))
        assert not floats._arrays and not store._arrays
    return taken


def _layers() -> list[MatchedLayer]:
    return match_layers(*tunable.pair(CONV, "A8W8", DATA))[0]


def test_rows_are_those_of_the_whole_model() -> None:
    with ActivationStore() as store:
        taken = _take(FEW, AHEAD, store)
    layers = _layers()
    whole = graph_proto.import_model(CONV)
    whole.outputs += [whole.tensors()[layer.target] for layer in layers[:-1]]
    model = open_model(whole)
    for layer, rows in zip(layers, taken, strict=True):
        for feed, (chosen, made) in zip(DATA, rows, strict=True):
            y = model.run(feed)[layer.target]
            assert chosen.shape == y.shape
            np.testing.assert_allclose(made, layer.layer.outputs(y, chosen.picked), atol=1e-5)
            assert made.shape[1] == min(10, layer.layer.count(y.shape))


@pytest.mark.parametrize("ahead", [0, 4 * 4 * 10 * 20, AHEAD])
@pytest.mark.parametrize("limit", [None, 0])
def test_what_is_read_together_and_where_it_is_kept_changes_no_row(
    ahead: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels may differ in a last bit where a step ends elsewhere."""
    opened: list[int] = []

    def _open(*rest: Any, **named: Any) -> InstrumentedModel[str]:
        opened.append(1)
        return InstrumentedModel(*rest, **named)

    monkeypatch.setattr(segmented_model, "InstrumentedModel", _open)
    with ActivationStore() as store:
        expected = _take(FEW, AHEAD, store)
    assert len(opened) == 1  # all layers in one step
    with ActivationStore(limit) as store:
        found = _take(FEW, ahead, store)
    assert len(opened) - 1 == {0: 4, 4 * 4 * 10 * 20: 2, AHEAD: 1}[ahead]
    for layer, other in zip(expected, found, strict=True):
        for (chosen, made), (others, there) in zip(layer, other, strict=True):
            np.testing.assert_array_equal(chosen.picked, others.picked)
            np.testing.assert_allclose(made, there, atol=1e-5)


@pytest.mark.parametrize("ahead", [0, AHEAD])
def test_skipped_layers_leave_the_others_as_they_are(ahead: int) -> None:
    with ActivationStore() as store:
        whole = _take(FEW, ahead, store)
        some = _take(FEW, ahead, store, skipped=(0, 2))
    assert [len(rows) for rows in some] == [0, 4, 0, 4]
    for number in (1, 3):
        for (_, made), (_, there) in zip(whole[number], some[number], strict=True):
            np.testing.assert_allclose(made, there, atol=1e-5)


@pytest.mark.parametrize("ahead", [0, AHEAD])
def test_rows_can_be_read_again_until_they_are_forgotten(ahead: int) -> None:
    float_graph, quantized = tunable.pair(CONV, "A8W8", DATA)
    layers, _ = match_layers(float_graph, quantized)
    with ActivationStore() as floats, ActivationStore() as store:
        model = SegmentedRun(float_graph, DATA, [layer.target for layer in layers], floats)
        reader = SampledRowReader(model, layers, FEW, store, ahead)
        for number in range(len(layers)):
            first, second = (list(reader.read(number)) for _ in range(2))
            assert len(first) == len(DATA)
            for (chosen, made), (again, there) in zip(first, second, strict=True):
                assert chosen is again and np.array_equal(made, there)
            reader.forget(number)
            assert not any(name == str(number) for _, name in store._arrays)
        assert not floats._arrays and not store._arrays


def test_rows_are_evenly_picked_and_follow_the_seed() -> None:
    picks = {}
    for seed in (3, 4):
        with ActivationStore() as store:
            rows = _take(RowSampler(len(DATA), 1, 40, seed), AHEAD, store)[0]
        picks[seed] = [np.asarray(one.picked) for one, _ in rows]
    for one in picks[3]:  # 64 rows in ten parts
        assert np.all((np.floor(6.4 * np.arange(10)) <= one) & (one < 6.4 * np.arange(1, 11)))
    assert any(not np.array_equal(a, b) for a, b in zip(picks[3], picks[4], strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(picks[3], picks[3][1:], strict=False))
