"""Oracle: the arrays that went in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from PIL import Image

from tests.helpers import corpus
from transforms.model import graph_proto
from transforms.run.feeds import Feeds, open_feeds, random_feeds
from transforms.run.image_options import ImageOptions
from transforms.run.run_model import open_model
from transforms.runtime.inputs import ModelInput, model_inputs

X = ModelInput("x", np.dtype(np.float32), (None, 2))
IDS = ModelInput("ids", np.dtype(np.int64), (1, None))


def numbered(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full((1, 2), i, np.float32)} for i in range(count)]


def seen(feeds: Feeds) -> list[float]:
    return [float(feed["x"][0, 0]) for _, feed in feeds]


class Reader:
    """As ONNX Runtime's CalibrationDataReader, which ends with None or with an empty feed."""

    def __init__(self, count: int, end: object = None) -> None:
        self._feeds, self._end = iter(numbered(count)), end
        self.calls = 0

    def get_next(self) -> object:
        self.calls += 1
        return next(self._feeds, self._end)


def test_a_list_of_feeds() -> None:
    feeds = open_feeds(numbered(3), [X])
    assert len(feeds) == 3 and feeds.is_repeatable
    assert seen(feeds) == seen(feeds) == [0, 1, 2]
    assert [name for name, _ in feeds] == ["0", "1", "2"]


def test_a_generator_is_taken_as_it_comes() -> None:
    taken = []

    def generate() -> Iterator[dict[str, np.ndarray]]:
        for feed in numbered(3):
            taken.append(feed)
            yield feed

    feeds = open_feeds(generate(), [X])
    assert not feeds.is_repeatable
    with pytest.raises(TypeError, match="not known beforehand"):
        len(feeds)
    next(iter(feeds))
    assert len(taken) == 1


@pytest.mark.parametrize("end", [None, {}])
def test_a_calibration_data_reader(end: object) -> None:
    feeds = open_feeds(Reader(3, end), [X])  # type: ignore[arg-type]
    assert not feeds.is_repeatable and seen(feeds) == [0, 1, 2]


def test_a_reader_is_not_asked_beyond_the_limit() -> None:
    reader = Reader(5)
    assert seen(open_feeds(reader, [X], limit=2)) == [0, 1]  # type: ignore[arg-type]
    assert reader.calls == 2


def test_the_reader_of_onnxruntime_itself() -> None:
    from onnxruntime.quantization import CalibrationDataReader

    class Derived(CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter(numbered(2))

        def get_next(self) -> object:
            return next(self.feeds, None)

    assert seen(open_feeds(Derived(), [X])) == [0, 1]


@pytest.mark.parametrize(("limit", "count"), [(None, 3), (1, 1), (3, 3), (9, 3)])
def test_limit_of_a_list(limit: int | None, count: int) -> None:
    feeds = open_feeds(numbered(3), [X], limit=limit)
    assert len(feeds) == count and seen(feeds) == list(range(count))


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_a_folder(tmp_path: Path, limit: int | None) -> None:
    for i, feed in enumerate(numbered(2)):
        np.savez(tmp_path / f"sample{i}.npz", **feed)
    feeds = open_feeds(tmp_path, [X], limit=limit)
    assert len(feeds) == (limit or 2) and feeds.is_repeatable
    assert seen(feeds) == [0, 1][:limit]
    assert [name for name, _ in open_feeds(str(tmp_path), [X])] == ["sample0", "sample1"]


def test_images_of_a_folder(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    Image.fromarray(pixels, "RGB").save(tmp_path / "a.png")
    wanted = ModelInput("image", np.dtype(np.float32), (1, 6, 5, 3))
    ((_, feed),) = open_feeds(tmp_path, [wanted], images=ImageOptions(mean=(1.0,)))
    assert np.array_equal(feed["image"][0], pixels - np.float32(1))


def test_numbers_and_lists_become_arrays() -> None:
    ((_, feed),) = open_feeds([{"ids": [[1, 2]]}], [IDS])  # type: ignore[dict-item]
    assert feed["ids"].dtype == np.int64 and feed["ids"].tolist() == [[1, 2]]


def test_byte_order_becomes_that_of_the_machine() -> None:
    ((_, feed),) = open_feeds([{"x": np.array([[1, 2]], ">f4")}], [X])
    assert feed["x"].dtype.isnative and feed["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize("source", [[], iter([]), Reader(0)])
def test_no_samples_are_an_error(source: object) -> None:
    with pytest.raises(ValueError, match=r"^the data hold no sample(; a reader or gen.*)?$"):
        list(open_feeds(source, [X]))  # type: ignore[arg-type]


def test_an_empty_or_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.npz, \.npy, \.png or \.jpg file"):
        open_feeds(tmp_path, [X])
    with pytest.raises(FileNotFoundError, match=r"folder '.*none' does not exist"):
        open_feeds(tmp_path / "none", [X])


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit of {limit} samples, at least 1 is needed"):
        open_feeds(numbered(1), [X], limit=limit)


def test_image_options_without_a_folder() -> None:
    with pytest.raises(ValueError, match="the samples come from no folder"):
        open_feeds(numbered(1), [X], images=ImageOptions(layout="NHWC"))
    assert len(open_feeds(numbered(1), [X], images=ImageOptions())) == 1


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"z": np.zeros((1, 2), np.float32)}, "sample '1': 'z' is not an input of the model, which has 'x'"),
        ({}, "sample '1': no array for input 'x', only for none"),
        ({"x": np.zeros((1, 3), np.float32)}, "sample '1', input 'x': shape [1, 3] instead of [?, 2]"),
        ({"x": np.zeros((1, 2))}, "sample '1', input 'x': type float64 instead of float32"),
        ({"x": np.float32([[0, np.nan]])}, "sample '1', input 'x': it holds NaN"),
        ([1.0], "sample '1', input 'x': type float64 instead of float32"),
    ],
)
def test_wrong_feeds_name_sample_and_input(feed: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        list(open_feeds([*numbered(1), feed], [X]))  # type: ignore[list-item]
    assert str(caught.value) == message


def test_infinite_numbers_are_legal() -> None:
    ((_, feed),) = open_feeds([{"x": np.float32([[0, -np.inf]])}], [X])
    assert feed["x"][0, 1] == -np.inf


INPUTS = [
    X,
    IDS,
    ModelInput("half", np.dtype(np.float16), (3,)),
    ModelInput("flag", np.dtype(np.bool_), ()),
    ModelInput("text", np.dtype(np.str_), (2,)),
    ModelInput("byte", np.dtype(np.uint8), (100,)),
]


def test_random_feeds_fit_and_repeat() -> None:
    feeds = random_feeds(INPUTS, 3, seed=4)
    first, second = list(feeds), list(random_feeds(INPUTS, 3, seed=4))
    assert len(feeds) == len(first) == 3
    for (_, a), (_, b) in zip(first, second, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert first[0][1]["x"].shape == (1, 2) and set(first[0][1]["byte"]) == {0, 1}


def test_random_feeds_differ_by_sample_and_seed() -> None:
    arrays = [feed["x"].tolist() for seed in (0, 1) for _, feed in random_feeds([X], 2, seed)]
    assert all(a != b for i, a in enumerate(arrays) for b in arrays[:i])


def test_no_random_feeds() -> None:
    with pytest.raises(ValueError, match="0 random samples, at least 1 is needed"):
        random_feeds([X], 0)


@pytest.mark.parametrize("name", ["layers", "if", "integers", "half input", "scalar", "shape arithmetic"])
def test_inputs_of_a_graph_are_those_of_its_session(name: str) -> None:
    model = corpus.build(name)
    inputs = model_inputs(graph_proto.import_model(model))
    assert inputs == open_model(graph_proto.import_model(model)).inputs


def test_inputs_that_are_no_tensors() -> None:
    for kind, word in (("seq", "sequence"), ("optional", "optional")):
        ends = f"({kind}(float[2]) x, float[2] z) => (float[2] y, {kind}(float[2]) s)"
        model = corpus.parse(f"{ends} {{ y = Neg(z) s = Identity(x) }}")
        with pytest.raises(ValueError, match=f"input 'x' is of type {word}, samples hold only tensors"):
            model_inputs(graph_proto.import_model(model))


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        (16, (1,), "input 'x' of type BFLOAT16 cannot be fed from arrays"),
        (None, (1,), "input 'x' has no declared type and shape"),
        (np.float32, None, "input 'x' has no declared type and shape"),
    ],
)
def test_inputs_that_can_not_be_fed(dtype: object, shape: object, message: str) -> None:
    graph = gs.Graph(inputs=[gs.Variable("x", dtype, shape)])
    with pytest.raises(ValueError, match=message):
        model_inputs(graph)
