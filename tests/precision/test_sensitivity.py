"""Oracles: equality, the csv module, and ranks and correlations worked out by NumPy."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.rank_correlation import spearman
from transforms.precision.sensitivity import LayerSensitivity, Sensitivity


def table(harms: list[float], label: str = "int8") -> Sensitivity:
    damages = tuple(LayerSensitivity(f"n{i}", "Conv", label, -harm, harm) for i, harm in enumerate(harms))
    return Sensitivity("l2", 4, damages)


NAMES = st.text(max_size=6)
VALUES = st.floats(allow_nan=False)
TABLES = st.builds(
    Sensitivity,
    st.sampled_from(["l2", "sqnr"]),
    st.integers(0, 9),
    st.lists(st.builds(LayerSensitivity, NAMES, NAMES, NAMES, VALUES, VALUES.map(abs)), max_size=5).map(
        tuple
    ),
)


@given(TABLES)
def test_json_reads_back_to_the_last_bit(found: Sensitivity) -> None:
    read = json.loads(found.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    rows = [{**row, "value": float(row["value"]), "harm": float(row["harm"])} for row in read["damages"]]
    assert (read["metric"], read["samples"]) == (found.metric, found.samples)
    assert tuple(LayerSensitivity(**row) for row in rows) == found.damages


def test_infinities_are_words() -> None:
    found = table([math.inf, 0.1])
    assert '"harm": "inf"' in found.to_json() and '"value": "-inf"' in found.to_json()
    assert '"harm": 0.1' in found.to_json()


@given(TABLES)
def test_csv_reads_back_to_the_last_bit(found: Sensitivity) -> None:
    rows = csv.DictReader(io.StringIO(found.to_csv(), newline=""))
    read = [(row["layer"], row["op"], row["label"], float(row["value"]), float(row["harm"])) for row in rows]
    assert read == [astuple(damage) for damage in found.damages]


def test_csv_as_it_is_written() -> None:
    found = Sensitivity("sqnr", 2, (LayerSensitivity('a,"b"', "MatMul", "int16/int8", -math.inf, 0.1),))
    assert found.to_csv() == (
        '"layer","op","label","value","harm"\n"a,""b""","MatMul","int16/int8",-inf,0.1\n'
    )


def test_harms_are_found_and_ranked() -> None:
    found = table([3.0, math.inf, 1.0, 3.0])
    assert [damage.layer for damage in found.ranked()] == ["n2", "n0", "n3", "n1"]
    assert found.harm_of("n2", "int8") == 1.0
    for layer, label in (("n2", "mx9"), ("n9", "int8")):
        with pytest.raises(
            ValueError, match=f"^the sensitivities say nothing of '{label}' in layer '{layer}'$"
        ):
            found.harm_of(layer, label)


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=12, unique=True), st.randoms())
def test_without_ties_it_is_the_known_formula(harms: list[float], random: object) -> None:
    """1 - 6 sum d^2 / (n (n^2 - 1)), d the differences of ranks."""
    other = list(harms)
    random.shuffle(other)  # type: ignore[attr-defined]
    n = len(harms)
    ranks = [np.argsort(np.argsort(one)) for one in (harms, other)]
    expected = 1 - 6 * float(((ranks[0] - ranks[1]) ** 2).sum()) / (n * (n * n - 1))
    # sums of n products of numbers up to n are exact in float64; root and quotient round twice
    assert spearman(table(harms), table(other)) == pytest.approx(expected, abs=1e-14)


def test_ties_share_the_mean_rank() -> None:
    """Ranks 0 1.5 1.5 3 against 0 1 2 3: the correlation of these numbers."""
    expected = np.corrcoef([0, 1.5, 1.5, 3], [0, 1, 2, 3])[0, 1]
    assert spearman(table([0, 5, 5, math.inf]), table([1, 2, 3, 4])) == pytest.approx(expected, abs=1e-14)


def test_only_what_is_in_both_counts() -> None:
    a = Sensitivity("l2", 1, table([1, 2, 3]).damages + table([9, 8, 7], "mx9").damages)
    assert spearman(a, table([10, 20, 30])) == 1.0
    assert spearman(table([10, 20, 5]), a) == spearman(a, table([10, 20, 5])) == -0.5


def test_no_ranking_is_nan() -> None:
    assert math.isnan(spearman(table([1, 2]), table([1, 2], "mx9")))
    assert math.isnan(spearman(table([1]), table([2])))
    assert math.isnan(spearman(table([1, 1, 1]), table([1, 2, 3])))
