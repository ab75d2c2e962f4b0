"""Oracle: a network in which one layer loses most by construction, and sums made by hand."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from onnx_narrow.summaries.model_history import ModelHistory
from tests.full_range.test_shift_tensors import MAKERS, PADDED, PADDED_DATA
from tests.helpers import origins, tunable
from transforms.full_range.shift_tensors import shift_tensors
from transforms.origins.loss_causes import KEEP, PER_CHANNEL, Cause, cause_of
from transforms.origins.loss_origins import LossOrigins, find_origins
from transforms.origins.loss_table import loss_table, rows, to_csv, to_json
from transforms.precision.readings import Reading
from transforms.scheme import preset

FEEDS = origins.feeds()


@pytest.fixture(scope="module")
def found() -> LossOrigins:
    scheme = preset("U8S8").by_rule().with_(per_channel=False, weight_method="MinMax")
    reference, quantized, _ = origins.quantized(origins.chain(), scheme, FEEDS)
    return find_origins(reference, quantized, FEEDS)


def test_the_layer_that_loses_is_named_with_its_cause(found: LossOrigins) -> None:
    first = found.first()
    assert first is not None and first.part.name == "gemm2"
    (place,) = found.main.named
    assert found.layers[place] is first
    cause = found.causes[place]
    assert "channels spread" in cause.words and PER_CHANNEL in cause.helps and KEEP in cause.helps


def test_layers_that_are_named_win_half_of_the_loss_and_more_than_the_others(found: LossOrigins) -> None:
    main = found.main
    assert main.without >= main.sqnr + 3 and main.without >= main.others
    assert main.share == pytest.approx(1 - 10 ** ((main.sqnr - main.without) / 10))


def test_shares_add_up_and_errors_do_not_begin_before_their_layer(found: LossOrigins) -> None:
    assert sum(one.shares["y"] for one in found.layers) == pytest.approx(1)
    one = found.layers[0]
    assert one.own == pytest.approx(one.total) and one.inherited > one.total + 20
    for layer in found.layers:
        powers = [10 ** (-value / 10) for value in (layer.own, layer.inherited, layer.total)]
        assert powers[2] == pytest.approx(max(powers[0] + powers[1], powers[2]), rel=1e-6)


def test_what_a_relu_cuts_is_no_error(found: LossOrigins) -> None:
    assert [one.part.shown for one in found.layers] == ["r0", "r1", "r2", "r3", "y"]


def test_tables_have_a_row_for_each_layer(found: LossOrigins) -> None:
    table = rows(found)
    assert [row["layer"] for row in table] == [f"gemm{i}" for i in range(5)]
    assert [row["rank"] for row in table] == [None, None, 1, None, None]
    read = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [float(row["share"]) for row in read] == [row["share"] for row in table]
    held = json.loads(to_json(found, {"float": "a"}))
    assert held["float"] == "a" and held["outputs"][0]["named"] == ["gemm2"]
    assert held["layers"][2]["cause"] == table[2]["cause"]


def test_json_has_no_infinity(found: LossOrigins) -> None:
    assert math.isinf(found.layers[0].inherited) or found.layers[0].inherited > 0
    assert "Infinity" not in to_json(found) and "NaN" not in to_json(found)


def test_the_table_of_two_files_needs_no_process(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from tests.helpers import build
    from transforms import model_io

    model = origins.chain()
    _, quantized, _ = origins.quantized(model, preset("U8S8"), FEEDS)
    model_io.save(quantized, tmp_path / "q.onnx")
    table = loss_table(build.save(model, tmp_path / "m.onnx"), tmp_path / "q.onnx", iter(FEEDS))
    assert len(table) == 5 and all(np.isfinite(row["share"]) for row in table)


def test_samples_of_another_scale_are_told() -> None:
    reference, quantized, _ = origins.quantized(origins.chain(), preset("U8S8"), FEEDS)
    large = [{"x": 255 * feed["x"]} for feed in FEEDS]
    (one,) = find_origins(reference, quantized, large).inputs
    assert one.is_suspect and one.high > 4 * one.grid_high


def test_no_samples_are_an_error() -> None:
    reference, quantized, _ = origins.quantized(origins.chain(), preset("U8S8"), FEEDS)
    with pytest.raises(ValueError, match="no samples to find the origins"):
        find_origins(reference, quantized, [])


def test_a_grid_that_is_shifted_covers_what_it_was_made_for() -> None:
    reference, quantized = tunable.pair(PADDED, "A8W8", PADDED_DATA)
    assert shift_tensors(quantized, {"x", *MAKERS}, padded=True)
    causes = find_origins(reference, quantized, PADDED_DATA).causes
    assert causes and not any("clipped" in one.words or "too wide" in one.words for one in causes.values())


def test_many_layers_are_said_to_be_many(found: LossOrigins) -> None:
    from dataclasses import replace

    from onnx_narrow.summaries.origins import headline

    layers = found.layers * 10
    many = replace(found.main, named=tuple(range(20)))
    words = headline(replace(found, layers=layers, outputs=[many]))
    assert words.startswith("The loss is spread over 20 of 50 layers; these 20 layers make")
    assert headline(found).startswith("Loss begins at 'gemm2' (Gemm); this layer makes")


def test_what_is_said_of_weights_is_not_of_a_bias() -> None:
    values = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    weight = Reading(1, "int4", None, values, np.round(values * 4) / 4)
    bias = Reading(2, "int8", None, values[0], np.zeros_like(values[0]))  # as bad as can be
    found = cause_of([weight, bias], {})
    assert found == cause_of([weight], {}) and found.words == "rounding of weights to int4, few bits"


def test_a_loss_that_is_spread_begins_nowhere(found: LossOrigins) -> None:
    from dataclasses import replace

    from onnx_narrow.summaries.origins import headline

    layers = [replace(one, shares={"y": share}) for one, share in zip(found.layers, SPREAD, strict=True)]
    spread = replace(found, layers=layers, outputs=[replace(found.main, named=(1, 0, 3))])
    assert spread.first() is None
    assert headline(spread).startswith(
        "The loss is spread over 3 of 5 layers, "
        "first 'gemm1' with 24 %, 'gemm0' with 20 %, 'gemm3' with 19 %;"
    )
    layers[1] = replace(layers[1], shares={"y": 0.25})
    assert headline(spread).startswith("Loss begins at 'gemm1' (Gemm), with 25 % of it; these 3 layers make")
    assert f"SQNR of {found.samples} samples pooled: " in headline(spread)


def test_layers_of_one_cause_are_under_it(found: LossOrigins) -> None:
    """Three layers, of which two have the same cause: its words stand once."""
    from dataclasses import replace

    from onnx_narrow.summaries.origins import by_cause, lines

    alike, other = (Cause(words, 30.0, ()) for words in ("rounding of weights to int8", "clipped"))
    layers = [replace(one, shares={"y": share}) for one, share in zip(found.layers, SPREAD, strict=True)]
    several = replace(
        found,
        layers=layers,
        outputs=[replace(found.main, named=(1, 0, 3))],
        causes={1: alike, 0: other, 3: alike},
    )
    assert list(by_cause(several)) == [(alike.words, [1, 3]), ("clipped", [0])]
    made = ModelHistory(Path("m.onnx"), Path("q.onnx"), {}, {}, frozenset(), frozenset())
    said = [line for line in lines(several, made) if " %  " in line]
    assert said == [
        "  43.0 %  2 layers: rounding of weights to int8",
        "    24.0 %  gemm1 (Gemm)",
        "    19.0 %  gemm3 (Gemm)",
        "  20.0 %  gemm0 (Gemm): clipped",
    ]


SPREAD = (0.2, 0.24, 0.18, 0.19, 0.19)


def test_bytes_of_a_layer_are_those_of_its_weights_in_float(found: LossOrigins) -> None:
    """Of 8 bits: 3 bytes more for each number of a weight in float, 1 in 16 bits, and none of the bias."""
    for one in found.layers:
        assert 0 < one.bytes_in_16_bits < one.bytes_in_float
