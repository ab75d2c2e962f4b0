"""Oracle: runs of each layer alone on every sample, and counts tried one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import origins
from transforms.origins import layer_shares
from transforms.origins.loss_origins import CLOSE, _fewest
from transforms.precision.switched_layers import SwitchedLayers
from transforms.scheme import preset

FEEDS = origins.feeds()


@pytest.fixture(scope="module")
def model() -> SwitchedLayers:
    scheme = preset("U8S8").by_rule().with_(per_channel=False, weight_method="MinMax")
    reference, quantized, _ = origins.quantized(origins.chain(), scheme, FEEDS)
    return SwitchedLayers(reference, quantized, inner=True)


def _exhaustive(model: SwitchedLayers) -> np.ndarray:
    plain = [model.run(feed, ())["y"].astype(np.float64) for feed in FEEDS]
    errors = np.array(
        [
            [np.square(model.run(feed, (i,))["y"] - y).sum() for feed, y in zip(FEEDS, plain, strict=True)]
            for i in range(len(model.parts))
        ]
    )
    return np.asarray((errors / errors.sum(0)).mean(1))


def test_shares_are_those_of_all_samples_where_there_is_time(model: SwitchedLayers) -> None:
    found = layer_shares.layer_shares(model, FEEDS).shares["y"]
    assert found == pytest.approx(_exhaustive(model), rel=1e-6)


def test_few_runs_rank_all_layers_and_measure_those_in_front_on_more(
    model: SwitchedLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = list[tuple[int, ...]]()
    run = SwitchedLayers.run
    monkeypatch.setattr(
        SwitchedLayers, "run", lambda self, feed, on, *more: runs.append((*on,)) or run(self, feed, on, *more)
    )
    count = len(model.parts)
    monkeypatch.setattr(layer_shares, "LAYER_RUNS", count * 2 * count)
    monkeypatch.setattr(layer_shares, "FRONT", 0.999)
    found = layer_shares.layer_shares(model, FEEDS).shares["y"]
    alone = [sum(on == (place,) for on in runs) for place in range(count)]
    assert {*found.argsort()[-2:]} == {*_exhaustive(model).argsort()[-2:]}
    assert found.sum() == pytest.approx(1)
    assert min(alone) == 1 and max(alone) > 1 and sum(alone) <= 2 * count


@pytest.mark.parametrize("least", [1, 2, 5, 16, 17, 40, 99, 100])
@pytest.mark.parametrize("guess", [1, 16, 100])
def test_hardly_more_than_the_fewest_are_found(least: int, guess: int) -> None:
    tried = list[int]()
    found = _fewest(100, guess, lambda count: tried.append(count) or count >= least)
    assert least <= found <= least + max(0, least // CLOSE)
    assert len(tried) <= 12 and all(0 < count < 100 for count in tried)
