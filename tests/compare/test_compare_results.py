"""Oracle: sums and counts done by hand on small folders."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.compare.compare_results import (
    METRICS,
    Comparison,
    ResultPair,
    compare,
    compare_arrays,
    compare_files,
    output_sqnr,
    pair_files,
    summarize,
    top1,
)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for side in "ab":
        (tmp_path / side).mkdir()
    return tmp_path / "a", tmp_path / "b"


def fill(folder: Path, *names: str, value: float = 1.0) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        np.save(folder / name, np.full((1, 4), value))


def test_pairs_come_in_natural_order_outputs_after_files(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        fill(folder, "10.npy", "2.npy", "out10/1.npy", "out2/1.npy")
    keys = [(pair.output, pair.name) for pair in pair_files(*folders)]
    assert keys == [("", "2.npy"), ("", "10.npy"), ("out2", "1.npy"), ("out10", "1.npy")]


def test_pairs_hold_the_paths(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        fill(folder, "x/0.npy")
    (pair,) = pair_files(*folders)
    assert pair == ResultPair("0.npy", "x", folders[0] / "x" / "0.npy", folders[1] / "x" / "0.npy")


@pytest.mark.parametrize("side", [0, 1])
def test_missing_files_are_told_for_either_side(folders: tuple[Path, Path], side: int) -> None:
    for folder in folders:
        fill(folder, "0.npy")
    fill(folders[side], "x/1.npy", "x/2.npy")
    with pytest.raises(ValueError) as caught:
        pair_files(*folders)
    assert str(caught.value).startswith(
        f"only in '{folders[side]}': x/1.npy, x/2.npy; allow_missing compares"
    )
    assert [pair.name for pair in pair_files(*folders, allow_missing=True)] == ["0.npy"]


def test_the_same_folder_twice_is_identical(folders: tuple[Path, Path]) -> None:
    fill(folders[0], "0.npy", "1.npy")
    assert all(one.is_identical for one in compare(pair_files(folders[0], folders[0])))


def test_results_come_in_the_order_of_the_pairs(folders: tuple[Path, Path]) -> None:
    names = [f"{i}.npy" for i in range(20)]
    for i, name in enumerate(names):
        fill(folders[0], name)
        fill(folders[1], name, value=1 + 2.0**-i)
    found = list(compare(pair_files(*folders)))
    assert [one.name for one in found] == names
    assert [one.l2 for one in found] == [2 * 2.0**-i for i in range(20)]


def test_the_first_error_ends_the_comparison(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        fill(folder, *(f"{i}.npy" for i in range(50)))
    (folders[1] / "3.npy").write_bytes(b"broken")
    stream = compare(pair_files(*folders))
    assert [next(stream).name for _ in range(3)] == ["0.npy", "1.npy", "2.npy"]
    with pytest.raises(ValueError, match=r"3\.npy' cannot be read"):
        next(stream)


def test_shape_errors_name_both_files(folders: tuple[Path, Path]) -> None:
    fill(folders[0], "0.npy")
    np.save(folders[1] / "0.npy", np.zeros(3))
    (pair,) = pair_files(*folders)
    with pytest.raises(ValueError) as caught:
        compare_files(pair)
    shapes = "shapes differ: [1, 4] in the baseline, [3] in the other"
    assert str(caught.value) == f"'{pair.quantized}' against '{pair.baseline}': {shapes}"


def test_peak_serves_psnr_and_ssim() -> None:
    x, y = np.eye(8), np.eye(8) * 0.9
    small, large = (compare_arrays("n", "", x, y, peak) for peak in (1.0, 100.0))
    assert large.psnr - small.psnr == pytest.approx(40)
    assert small.ssim is not None and large.ssim is not None and small.ssim < large.ssim


def comparison(value: float, ssim: float | None = None) -> Comparison:
    bad = 1 if math.isnan(value) else 0
    return Comparison("n", "", (1,), value, value, value, ssim, value, "", bad, 0)


NUMBERS = st.floats(-100, 100)


@given(st.lists(NUMBERS, min_size=1), st.integers(0, 3))
def test_summary_leaves_nan_out(values: list[float], bad: int) -> None:
    summary = summarize([comparison(value) for value in [*values, *[math.nan] * bad]])
    assert summary.mean["sqnr"] == pytest.approx(np.mean(values), abs=1e-9)
    assert summary.worst["sqnr"] == min(values) and summary.worst["l2"] == max(values)


def test_summary_of_nothing() -> None:
    summary = summarize([comparison(math.nan)])
    assert set(summary.mean) == {metric.field for metric in METRICS}
    assert set(summary.mean.values()) == set(summary.worst.values()) == {None}


def test_ssim_counts_where_it_is() -> None:
    summary = summarize([comparison(1.0, 0.5), comparison(1.0), comparison(1.0, 0.7)])
    assert (summary.mean["ssim"], summary.worst["ssim"]) == (pytest.approx(0.6), 0.5)


def test_integers_beside_floats_do_not_enter() -> None:
    """Class numbers that are equal would make the mean infinite; alone, integers are all there is."""
    boxes = compare_arrays("n", "boxes", np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    labels = compare_arrays("n", "labels", np.array([3, 4]), np.array([3, 4]))
    assert labels.has_integers and not boxes.has_integers
    assert summarize([boxes, labels]).mean["sqnr"] == boxes.sqnr == pytest.approx(20)
    assert summarize([labels]).mean["sqnr"] == math.inf
    assert output_sqnr([boxes, labels]) == [("boxes", boxes.sqnr)]


def test_the_worst_output_comes_first() -> None:
    both = [("scores", 0.01), ("boxes", 0.1), ("scores", 0.02)]
    results = [compare_arrays("n", name, np.ones(2), np.ones(2) + error) for name, error in both]
    assert [name for name, _ in output_sqnr(results)] == ["boxes", "scores"]


@pytest.mark.parametrize("values", [[math.inf, 40.0], [math.inf, -math.inf]])
def test_infinities_follow_arithmetic(values: list[float]) -> None:
    mean = summarize([comparison(value) for value in values]).mean["sqnr"]
    assert mean is not None and np.array_equal(mean, sum(values) / 2, equal_nan=True)


def pairs_of_scores(
    folders: tuple[Path, Path], baseline: np.ndarray, quantized: np.ndarray
) -> list[ResultPair]:
    np.save(folders[0] / "0.npy", baseline)
    np.save(folders[1] / "0.npy", quantized)
    return pair_files(*folders)


def test_top1_by_hand(folders: tuple[Path, Path]) -> None:
    pairs = pairs_of_scores(folders, np.eye(4), np.eye(4)[[0, 1, 3, 2]])
    found = top1(pairs, np.array([0, 1, 2, 2]))
    assert (found.baseline, found.quantized, found.agreement, found.count) == (0.75, 0.75, 0.5, 4)


def test_top1_of_more_dimensions(folders: tuple[Path, Path]) -> None:
    scores = np.eye(4).reshape(2, 2, 4)
    assert top1(pairs_of_scores(folders, scores, scores), np.arange(4)).baseline == 1


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_top1_without_scores(folders: tuple[Path, Path], shape: tuple[int, ...]) -> None:
    pairs = pairs_of_scores(folders, np.zeros(shape), np.zeros(shape))
    with pytest.raises(ValueError, match="holds no scores of classes"):
        top1(pairs, np.arange(3))
