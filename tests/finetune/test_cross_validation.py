"""Few samples judge the candidates of a layer in turn.

Oracles: sums over the same rows that are read at once, and the errors of tuned layers on samples that
tuning has not seen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers import tunable
from tests.layers.test_shared_weights import TWINS
from transforms.finetune.collect_gram import open_sums
from transforms.finetune.cross_validation import crossed, joined, part_count, places_of
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.gram import SharedGramStats
from transforms.finetune.options import LayerwiseOptions
from transforms.finetune.output_error import OutputError
from transforms.layers.match_layers import match_layers
from transforms.model.copy_graph import copy_graph
from transforms.run.workers import Workers

CONV, MATMUL = tunable.conv_net(), tunable.matmul_net()
HELD = [False, False, True, False, False, True, False]


def _arrays(sums: SharedGramStats) -> list[np.ndarray]:
    return [getattr(part, name) for part in sums.parts for name in ("x", "y", "xx", "yx", "yy")]


@pytest.mark.parametrize("workers", [None, Workers()], ids=["alone", "workers"])
def test_parts_are_the_rows_of_all_fitting_samples(workers: Workers | None) -> None:
    data = tunable.samples(CONV, 8)
    float_graph, quantized = tunable.pair(CONV, "A8W8", data)
    layers, _ = match_layers(float_graph, quantized)
    read = []
    for parts in (1, 3):
        with open_sums(float_graph, quantized, data, layers, LayerwiseOptions(), workers) as sums:
            read.append(sums.read_parts(0, parts))
    (whole,), held = read[0]
    parts, same = read[1]
    assert len(parts) == 3 and all(part.count > 0 for part in parts)
    for one, two in ((whole, joined(parts)), (held, same)):
        assert one.count == two.count
        for a, b in zip(_arrays(one), _arrays(two), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(a).max())
    for others, part in crossed(parts):
        assert others.count + part.count == whole.count
    assert not crossed([whole])


def test_samples_are_dealt_out_in_turn_and_neighbours_stay_together_in_blocks() -> None:
    assert places_of(HELD, 2, in_blocks=False) == [0, 1, 2, 0, 1, 2, 0]
    assert places_of(HELD, 2, in_blocks=True) == [0, 0, 2, 0, 1, 2, 1]
    assert places_of(HELD, 1, in_blocks=False) == [0, 0, 1, 0, 0, 1, 0]


def test_six_held_out_samples_and_slow_solvers_judge_alone() -> None:
    data = tunable.samples(CONV, 8)
    layer, options = match_layers(*tunable.pair(CONV, "A8W8", data))[0][0], LayerwiseOptions()
    assert part_count(layer, HELD, options) == 5
    assert part_count(layer, HELD * 3, options) == 1  # six of 21
    assert part_count(layer, [*HELD, *HELD, False, False], options) == 8
    assert part_count(layer, [False, True], options) == 1
    assert part_count(layer, HELD, replace(options, algorithm="adaround")) == 1


def test_inputs_that_depend_on_the_weight_are_judged_by_held_out_samples() -> None:
    data = tunable.samples(TWINS, 8)
    layers, _ = match_layers(*tunable.pair(TWINS, "MX6", data))
    counts = {bool(one.sharing_layers): part_count(one, HELD, LayerwiseOptions()) for one in layers}
    assert counts[True] == 1


@pytest.mark.parametrize("name", ["A8W8", "W4A8"])
def test_unseen_samples_lose_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are tuned on eight samples of six draws: one held-out sample chooses, or all in turn."""
    data = tunable.samples(CONV, 120)
    unseen, gains = data[60:], []
    for parts in (1, 8):
        if parts == 1:
            monkeypatch.setattr("transforms.finetune.finetune_weights.part_count", lambda *_: 1)
        else:
            monkeypatch.undo()
        found = []
        for first in range(0, 48, 8):
            few = data[first : first + 8]
            float_graph, quantized = tunable.pair(CONV, name, few)
            errors, tuned = OutputError(float_graph, unseen), copy_graph(quantized)
            finetune_weights(float_graph, tuned, few)
            found.append(10 * np.log10(errors.each(quantized).relative / errors.each(tuned).relative))
        gains.append(found)
    assert np.mean(gains[1]) > np.mean(gains[0]) and min(gains[1]) > min(gains[0])
