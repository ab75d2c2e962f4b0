"""Oracle: the calibration without a cache, and how often the data were taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ops.formats import get_format
from tests.helpers import build
from transforms.calibrate.cache import calibrate_cached, decode, encode
from transforms.calibrate.calibrate import Calibration, CalibrationOptions, calibrate
from transforms.calibrate.histogram import Histogram
from transforms.calibrate.range_statistics import Moments, RangeStats, add_to_all
from transforms.model import graph_proto, provenance
from transforms.run.feeds import Feeds, open_feeds
from transforms.run.image_options import ImageOptions
from transforms.runtime.inputs import model_inputs

NAMES = ["x", "matmul0_out", "y", "weight0"]
GRAPH = graph_proto.import_model(build.dense(width=160))


def arrays(count: int = 3, seed: int = 0) -> list[dict[str, NDArray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((5, 160)).astype(np.float32)} for _ in range(count)]


def feeds(count: int = 3, seed: int = 0) -> Feeds:
    return open_feeds(arrays(count, seed), model_inputs(GRAPH))


def ranges(found: Calibration) -> list[tuple[float, float]]:
    return [
        found.range(name, get_format(format), symmetric=symmetric)
        for name in found.observed
        for format in ("int8", "uint16")
        for symmetric in (True, False)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ranges.json"


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile", "MSE"])
def test_the_second_time_comes_from_the_file_and_is_the_same(path: Path, method: str) -> None:
    options = CalibrationOptions(method)
    calls: list[int] = []
    for taken in (0, 4):
        found, known = calibrate_cached(
            path, GRAPH, NAMES, feeds(), options, progress=lambda done, _: calls.append(done)
        )
        assert known == taken and list(found.observed) == NAMES and calls == [1, 2, 3]
        assert ranges(found) == ranges(calibrate(GRAPH, NAMES, feeds(), options))


def test_the_file_is_json_and_stays_when_nothing_is_added(path: Path) -> None:
    calibrate_cached(path, GRAPH, NAMES, feeds())
    before = path.read_bytes()
    calibrate_cached(path, GRAPH, NAMES[:2], feeds())
    assert path.read_bytes() == before and json.loads(before)["format"] == "onnx-narrow calibration 3"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_tensors_are_added(path: Path) -> None:
    calibrate_cached(path, GRAPH, ["y"], feeds())
    found, known = calibrate_cached(path, GRAPH, NAMES, feeds())
    assert known == 1 and ranges(found) == ranges(calibrate(GRAPH, NAMES, feeds()))
    assert calibrate_cached(path, GRAPH, NAMES, feeds())[1] == 4


def other_model() -> Any:
    return graph_proto.import_model(build.dense(width=160, seed=1))


def small_change() -> Any:
    """One bit of one large weight."""
    model = build.dense(width=160)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight.view(np.uint32)[7, 9] ^= 1
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "weight0"))
    return graph_proto.import_model(model)


@pytest.mark.parametrize(
    ("graph", "data", "options"),
    [
        (other_model, feeds, CalibrationOptions()),
        (small_change, feeds, CalibrationOptions()),
        (lambda: GRAPH, lambda: feeds(seed=1), CalibrationOptions()),
        (lambda: GRAPH, lambda: feeds(count=2), CalibrationOptions()),
        (lambda: GRAPH, feeds, CalibrationOptions("MSE")),
        (lambda: GRAPH, feeds, CalibrationOptions(averaging_constant=0.5)),
    ],
)
def test_what_makes_another_entry(
    path: Path, graph: Callable[[], Any], data: Callable[[], Feeds], options: CalibrationOptions
) -> None:
    calibrate_cached(path, GRAPH, NAMES, feeds())
    found, known = calibrate_cached(path, graph(), NAMES, data(), options)
    assert known == 0 and ranges(found) == ranges(calibrate(graph(), NAMES, data(), options))
    assert calibrate_cached(path, GRAPH, NAMES, feeds())[1] == 4, "the first entry is still there"


@pytest.mark.parametrize("change", [(provenance, "version", lambda: "0"), (onnxruntime, "__version__", "0")])
def test_what_another_version_observed_is_not_taken_over(
    path: Path, change: tuple[Any, str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate_cached(path, GRAPH, NAMES, feeds())
    assert calibrate_cached(path, GRAPH, NAMES, feeds())[1] == 4
    monkeypatch.setattr(*change)
    assert calibrate_cached(path, GRAPH, NAMES, feeds())[1] == 0


def test_methods_share_what_they_look_at(path: Path) -> None:
    calibrate_cached(path, GRAPH, NAMES, feeds(), CalibrationOptions("MSE"))
    options = CalibrationOptions("Percentile", percentile=99)
    found, known = calibrate_cached(path, GRAPH, NAMES, feeds(), options)
    assert known == 4 and ranges(found) == ranges(calibrate(GRAPH, NAMES, feeds(), options))


def test_moving_averages_come_back(path: Path) -> None:
    options = CalibrationOptions(moving_average=True, averaging_constant=0.5)
    for _ in range(2):
        found, known = calibrate_cached(path, GRAPH, NAMES, feeds(), options)
        assert ranges(found) == ranges(calibrate(GRAPH, NAMES, feeds(), options))
    assert known == 4


def test_moments_come_back(path: Path) -> None:
    calibrate_cached(path, GRAPH, NAMES, feeds())
    for taken in (3, 4):
        found, known = calibrate_cached(path, GRAPH, NAMES, feeds(), channels=[("y", -1)])
        wanted = calibrate(GRAPH, ["y"], feeds(), channels=[("y", -1)]).observed["y"].moments[-1]
        assert known == taken and np.array_equal(found.observed["y"].moments[-1].means[1], wanted.means[1])
    assert calibrate_cached(path, GRAPH, NAMES, feeds(), channels=[("y", 0)])[1] == 3


def test_moments_along_several_axes_stay_beside_each_other(path: Path) -> None:
    for axes, taken in (((0,), 0), ((1,), 0), ((0, 1), 1), ((0,), 1), ((1, -1), 0), ((0, 1, -1), 1)):
        channels = [("y", axis) for axis in axes]
        found, known = calibrate_cached(path, GRAPH, [], feeds(), channels=channels)
        wanted = calibrate(GRAPH, [], feeds(), channels=channels)
        assert known == taken
        for axis in axes:
            assert np.array_equal(
                found.observed["y"].moments[axis].means[1], wanted.observed["y"].moments[axis].means[1]
            )


def test_folders_are_known_by_what_they_hold(path: Path) -> None:
    """The name of the folder and the times of its files do not matter; how images are read does."""
    from PIL import Image

    folders = [path.parent / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
        Image.fromarray(pixels, "RGB").save(folder / f"{folder.name}.png")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    model = build.model([node], [build.value("x", [1, 3, 6, 5])], [build.value("y", [1, 3, 6, 5])])
    graph = graph_proto.import_model(model)
    inputs = model_inputs(graph)
    known = [
        calibrate_cached(path, graph, ["y"], open_feeds(folder, inputs, images=images))[1]
        for folder, images in (
            (folders[0], None),
            (folders[1], None),
            (folders[0], ImageOptions(mean=(1.0,))),
        )
    ]
    assert known == [0, 1, 0]


def test_what_another_process_wrote_meanwhile_stays(path: Path) -> None:
    def interfere(done: int, total: int | None) -> None:
        calibrate_cached(path, other_model(), NAMES, feeds())

    calibrate_cached(path, GRAPH, NAMES, feeds(), progress=interfere)
    assert calibrate_cached(path, GRAPH, NAMES, feeds())[1] == 4
    assert calibrate_cached(path, other_model(), NAMES, feeds())[1] == 4


def test_data_that_can_not_be_read_twice(path: Path) -> None:
    once = open_feeds(iter(arrays()), model_inputs(GRAPH))
    with pytest.raises(ValueError, match="a reader or a generator, which cannot be read twice"):
        calibrate_cached(path, GRAPH, NAMES, once)
    assert not path.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a calibration cache: Expecting value"),
        (b"\x80\xff", "is not a calibration cache: 'utf-8' codec"),
        (b"[1, 2]", "is not a calibration cache: it does not say 'onnx-narrow calibration 3'"),
        (b'{"entries": {}}', "is not a calibration cache: it does not say"),
        (b'{"format": "onnx-narrow calibration 4", "entries": {}}', "is not a calibration cache"),
        (b'{"format": "onnx-narrow calibration 3", "entries": 3}', "is a broken calibration cache"),
        (b'{"format": "onnx-narrow calibration 3", "entries": {"a": 1}}', "is a broken calibration cache"),
        (b"[" * 100_000, "is not a calibration cache"),
    ],
)
def test_foreign_files_are_refused_and_left_alone(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        calibrate_cached(path, GRAPH, NAMES, feeds())
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one.pop("average"),
        lambda one: one.update(range=[2, 1]),
        lambda one: one.update(range=[0, "x"]),
        lambda one: one.update(range=3),
        lambda one: one["histogram"].update(counts="AAAA"),
        lambda one: one["histogram"].update(counts="!"),
        lambda one: one["histogram"].update(exponent=4000),
        lambda one: one["histogram"].pop("exponent"),
        lambda one: one.update(histogram=[]),
        lambda one: one["moments"][0].update(sums=one["histogram"]["counts"][:-8]),
        lambda one: one["moments"][0].pop("count"),
        lambda one: one["moments"].append(one["moments"][0]),
        lambda one: one.update(moments="x"),
    ],
)
def test_broken_entries_are_refused(path: Path, damage: Callable[[dict[str, Any]], object]) -> None:
    options = CalibrationOptions("MSE")
    calibrate_cached(path, GRAPH, ["y"], feeds(), options, channels=[("y", 1)])
    content = json.loads(path.read_text())
    ((entry,),) = [list(tensors.values()) for tensors in content["entries"].values()]
    damage(entry)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is a broken calibration cache: tensor 'y': ") as caught:
        calibrate_cached(path, GRAPH, ["y"], feeds(), options, channels=[("y", 1)])
    assert "\n" not in str(caught.value)


def test_an_entry_without_what_is_needed_is_made_again(path: Path) -> None:
    options = CalibrationOptions("MSE")
    calibrate_cached(path, GRAPH, ["y"], feeds(), options)
    content = json.loads(path.read_text())
    for tensors in content["entries"].values():
        tensors["y"].pop("histogram")
    path.write_text(json.dumps(content))
    assert calibrate_cached(path, GRAPH, ["y"], feeds(), options)[1] == 0
    assert calibrate_cached(path, GRAPH, ["y"], feeds(), options)[1] == 1


def test_places_that_can_not_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        calibrate_cached(tmp_path / "none" / "ranges.json", GRAPH, NAMES, feeds())
    with pytest.raises(ValueError, match="is a folder, not a file"):
        calibrate_cached(tmp_path, GRAPH, NAMES, feeds())


def test_nothing_is_written_when_calibration_fails(path: Path) -> None:
    with pytest.raises(ValueError, match="'nowhere' cannot be calibrated"):
        calibrate_cached(path, GRAPH, ["nowhere"], feeds())
    assert not path.exists()


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(FLOATS, max_size=5), max_size=4), st.booleans(), st.booleans())
def test_json_is_exact(samples: list[list[float]], histogram: bool, moments: bool) -> None:
    one = RangeStats(histogram=Histogram() if histogram else None, moments={0: Moments(0)} if moments else {})
    for sample in samples:
        add_to_all([one], np.array(sample + [0.0] * (5 - len(sample)), np.float32), averaging_constant=0.3)
    other = decode(json.loads(json.dumps(encode(one), allow_nan=False)))
    assert (other.low, other.high, other.average) == (one.low, one.high, one.average)
    assert encode(other) == encode(one)
    if one.histogram and other.histogram:
        assert one.histogram.exponent == other.histogram.exponent
        assert np.array_equal(one.histogram.counts, other.histogram.counts)
    assert one.moments.keys() == other.moments.keys()
    for axis, own in one.moments.items():
        assert not own.count or np.array_equal(own.sums, other.moments[axis].sums)
