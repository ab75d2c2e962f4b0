"""What samples are for. Oracles: places by hand, the feeds that candidates run on, and files."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.judged_networks import network, samples
from tools import quantize, report
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune import fit_weights
from transforms.judge.decisions import KEY
from transforms.judge.judge import Judge
from transforms.judge.sample_roles import (
    checking,
    fitting,
    given_for_goal,
    goal_judging,
    is_held_out,
    judging,
    judging_layers,
    ranking,
    ranking_formats,
    ranking_layers,
    searching,
    searching_evenly,
    summarizing,
    taken,
    tuning_judged,
)
from transforms.pipelines import measure, quantize_graph
from transforms.scheme import preset


@pytest.mark.parametrize(
    ("count", "spared"),
    [
        (1, []),
        (8, []),
        (9, []),
        (10, [8, 9]),
        (16, [13, 14, 15]),
        (32, [28, 29, 30, 31]),
        (500, [32, 33, 34, 35]),
    ],
)
def test_few_samples_decide_and_some_of_many_do_not(count: int, spared: list[int]) -> None:
    assert list(checking(count)) == spared


@pytest.mark.parametrize(
    ("count", "spared"), [(2, []), (3, [2]), (9, [8]), (16, [14, 15]), (40, [32, 33, 34, 35])]
)
def test_one_of_eight_texts_does_not(count: int, spared: list[int]) -> None:
    """A text has a row for each token, so that one of few tells enough."""
    assert list(checking(count, texts=True)) == spared
    assert list(judging(count, texts=True)) == list(range(min(count, 36) - len(spared)))
    assert fitting(count, texts=True) == [place for place in range(count) if place not in spared]


@pytest.mark.parametrize(
    ("count", "places"),
    [(1, (0, 1)), (8, (0, 8)), (16, (0, 16)), (20, (4, 20)), (48, (32, 48)), (500, (32, 48))],
)
def test_a_summary_tells_of_sixteen_samples_that_judge_no_candidates_where_there_are_as_many(
    count: int, places: tuple[int, int]
) -> None:
    assert summarizing(count) == range(*places)
    assert summarizing(count, texts=True) == range(max(min(count, 36) - 4, 0), min(count, 36))


@pytest.mark.parametrize("count", [9, 20, 40])
def test_no_decision_sees_them(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = network(2, 0.3, 8.0), samples(count, 1)
    judged, fitted = list[np.ndarray](), list[np.ndarray]()

    class _Judge(Judge):
        def __init__(self, graph, feeds, run=None, **how) -> None:  # type: ignore[no-untyped-def]
            judged.extend(feed["x"] for feed in feeds)
            super().__init__(graph, feeds, run, **how)

    def _fit(*given, **more):  # type: ignore[no-untyped-def]
        fitted.extend(feed["x"] for feed in given[2])
        return found(*given, **more)

    found = fit_weights.fit_weights
    monkeypatch.setattr(measure, "Judge", _Judge)
    monkeypatch.setattr(fit_weights, "fit_weights", _fit)
    done = quantize_graph.quantize_graph(model_io.load(model), preset("W4A8"), CalibrationData(feeds))
    assert done.decisions.tried and judged and fitted
    places = [
        i for i, feed in enumerate(feeds) if any((feed["x"] == one).all() for one in (*judged, *fitted))
    ]
    assert not set(places) & set(checking(count))
    assert len(judged) == min(32, count - len(checking(count)))
    assert len(fitted) == count - len(checking(count))


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (12, "12 samples held out in 4 folds"),
        pytest.param(8, "8 samples held out in 4 folds", marks=pytest.mark.heavy),
    ],
)
def test_the_record_is_in_the_file_and_in_the_report(tmp_path: Path, count: int, said: str) -> None:
    onnx.save(network(2, 0.3, 8.0), tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(samples(count, 1)):
        np.save(tmp_path / "data" / f"{i:02}.npy", feed["x"])
    paths = [("--output", "q.onnx"), ("--data", "data")]
    command = [word for option, name in paths for word in (option, str(tmp_path / name))]
    assert quantize.main(["--input", str(tmp_path / "float.onnx"), *command, "--config", "A8W8"]) == 0
    entries = {entry.key: entry.value for entry in onnx.load(tmp_path / "q.onnx").metadata_props}
    lines = entries[KEY].splitlines()
    assert any(line.startswith("ranges: ") and " dB" in line for line in lines)
    assert lines[-1].startswith("outputs: ") and said in lines[-1]
    page = tmp_path / "report.html"
    models = ["--float", str(tmp_path / "float.onnx"), "--quantized", str(tmp_path / "q.onnx")]
    assert report.main([*models, "--data", str(tmp_path / "data"), "--output", str(page)]) == 0
    assert all(escape(line) in page.read_text() for line in lines)


def test_rules_leave_no_record(tmp_path: Path) -> None:
    onnx.save(network(2, 0.3, 8.0), tmp_path / "float.onnx")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "0.npy", samples(1, 1)[0]["x"])
    command = ["--input", str(tmp_path / "float.onnx"), "--output", str(tmp_path / "q.onnx")]
    assert quantize.main([*command, "--data", str(tmp_path / "data"), "--config", "A8W8", "--fast"]) == 0
    assert KEY not in {entry.key for entry in onnx.load(tmp_path / "q.onnx").metadata_props}


@pytest.mark.parametrize("count", range(1, 200))
def test_a_goal_is_judged_on_enough_samples_and_others_measure_ranges(count: int) -> None:
    """At least four as soon as there are eight, a fourth of 16 or more, and never one alone."""
    held = goal_judging(count)
    assert len(held) == min(32, count // 4) if count >= 16 else 2 * len(held) <= count
    assert len(held) >= 4 if count >= 8 else len(held) != 1
    assert (count < 4) == (not held)


@pytest.mark.parametrize(("count", "every"), [(1, 5), (4, 5), (20, 5), (64, 2), (500, 5)])
def test_tuned_models_run_on_held_out_samples_and_a_few_others(count: int, every: int) -> None:
    places, held = tuning_judged(count, every)
    assert all(is_held_out(place, count, every) for place in held) and set(held) <= set(places)
    assert len(held) == min(32, max(1, count // every))
    assert len(places) == min(count, max(16, len(held))) and places == sorted(set(places))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
def test_searches_run_on_few_samples(count: int) -> None:
    assert list(searching(count)) == list(range(min(count, 8)))
    spread = searching_evenly(count)
    assert len(spread) == min(count, 8) and spread[0] == 0 and spread[-1] >= count - count / 8 - 1
    assert ranking(count, 256, 1000) == [0] and ranking(count, 256, 1) == spread
    with_last = ranking_formats(count, 100, 25)
    assert len(with_last) == min(count, 4) and with_last[0] == 0 and count - 1 in (with_last[-1], 0)


def test_samples_after_the_last_place_are_not_read() -> None:
    read = iter("abcdef")
    assert taken(read, {0, 2}) == ["a", "c"] and next(read) == "d"
    assert taken(read, set()) == [] and next(read) == "e"


@pytest.mark.parametrize("judging", range(2, 33))
def test_as_many_samples_have_to_be_given_as_let_so_many_judge(judging: int) -> None:
    given = given_for_goal(judging)
    assert given is not None and len(goal_judging(given)) >= judging > len(goal_judging(given - 1))
    assert given_for_goal(33) is None


@pytest.mark.parametrize("count", [4, 5, 8, 32])
def test_layers_are_judged_on_samples_that_did_not_rank_them(count: int) -> None:
    ranked, judged = ranking_layers(count), judging_layers(count)
    assert sorted([*ranked, *judged]) == list(range(count)) and 0 <= len(ranked) - len(judged) <= 1
