"""Samples that are made of few others.

Oracles: means of pixels in float64, and the errors of the copies alone.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import tunable
from transforms.finetune.output_error import OutputError
from transforms.finetune.vary_samples import mosaics, noisy, varied, with_bars

CONV = tunable.conv_net()
RNG = np.random.default_rng(3)


def _images(*shape: int) -> list[dict[str, np.ndarray]]:
    return [{"x": RNG.random(shape, np.float32), "size": np.array([8, 9])} for _ in range(5)]


@pytest.mark.parametrize(("shape", "sides"), [((2, 3, 8, 9), (2, 3)), ((2, 9, 12, 1), (1, 2))])
@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_every_other_image_has_a_bar_of_its_mean_color(
    shape: tuple[int, ...], sides: tuple[int, int], kind: type
) -> None:
    feeds = [{**feed, "x": (250 * feed["x"]).astype(kind)} for feed in _images(*shape)]
    before = [feed["x"].copy() for feed in feeds]
    found = with_bars(feeds)
    for place, (given, made) in enumerate(zip(before, found, strict=True)):
        assert np.array_equal(feeds[place]["x"], given) and made["x"].dtype == kind
        assert made["size"] is feeds[place]["size"]
        size = given.shape[sides[place // 2 % 2]]
        parts = [np.split(x, [size - size // 3], sides[place // 2 % 2]) for x in (given, made["x"])]
        assert np.array_equal(parts[0][0], parts[1][0])
        mean = given.mean(sides, np.float64, keepdims=True) if place % 2 == 0 else parts[0][1]
        assert np.abs(parts[1][1] - mean).max() <= (0.5 if kind is np.uint8 else 1e-4)


@pytest.mark.parametrize("shape", [(1, 8, 9), (1, 3, 7, 9), (1, 5, 8, 5), (4,)])
def test_other_inputs_have_no_bars(shape: tuple[int, ...]) -> None:
    feeds = _images(*shape)
    assert all(made["x"] is feed["x"] for made, feed in zip(with_bars(feeds), feeds, strict=True))


def test_several_images_of_one_sample_have_no_bars() -> None:
    feeds = [{**feed, "part": feed["x"]} for feed in _images(1, 3, 8, 9)]
    assert all(made["x"] is feed["x"] for made, feed in zip(with_bars(feeds), feeds, strict=True))


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
@pytest.mark.parametrize(
    ("shape", "sides", "tiles"), [((2, 3, 8, 9), (2, 3), (4, 4)), ((1, 35, 64, 1), (1, 2), (5, 8))]
)
def test_pixels_of_a_mosaic_are_the_means_of_its_tiles(
    shape: tuple[int, ...], sides: tuple[int, int], tiles: tuple[int, int], kind: type
) -> None:
    """Tiles are as large as they have to be for eight of them, and four pixels at least."""
    (feed,) = ({**feed, "x": (250 * feed["x"]).astype(kind)} for feed in _images(*shape)[:1])
    given = feed["x"].copy()
    (made,) = mosaics([feed])
    assert np.array_equal(feed["x"], given) and made["x"].dtype == kind and made["size"] is feed["size"]
    for row in range(0, shape[sides[0]], tiles[0]):
        for column in range(0, shape[sides[1]], tiles[1]):
            tile = [slice(None)] * 4
            tile[sides[0]], tile[sides[1]] = slice(row, row + tiles[0]), slice(column, column + tiles[1])
            mean = given[tuple(tile)].mean(sides, np.float64, keepdims=True)
            assert np.abs(made["x"][tuple(tile)] - mean).max() <= (0.5 if kind is np.uint8 else 1e-4)


def test_what_is_no_image_is_no_mosaic() -> None:
    """Several images of one sample are, each by itself; a mask with infinities is none."""
    mask = np.where(np.tri(8, dtype=bool), np.float32(0), np.float32(-np.inf))[None, None]
    assert mosaics([*_images(1, 8, 9), *_images(1, 5, 8, 5), {"ids": np.arange(4)}, {"mask": mask}]) == []
    image = np.eye(8)[None, None]
    (both,) = mosaics([{"x": image, "mask": mask, "y": image + 1}])
    assert both["mask"] is mask and np.array_equal(both["x"] + 1, both["y"])
    assert np.array_equal(both["x"][0, 0], np.kron(np.eye(2), np.full((4, 4), 0.25)))
    assert mosaics([]) == []


def test_copies_differ_a_little_and_stay_within_the_range_of_all_samples() -> None:
    feeds = [{**feed, "mask": np.array([0, -np.inf], np.float32)} for feed in _images(1, 40)]
    found = varied(feeds)
    assert len(found) == 15 and all(one is other for one, other in zip(found, feeds, strict=False))
    low, high = min(feed["x"].min() for feed in feeds), max(feed["x"].max() for feed in feeds)
    for place, made in enumerate(found[5:]):
        own = feeds[place % 5]
        difference = feeds[(place + 1) % 5]["x"] - feeds[(place + 2) % 5]["x"]
        step = np.float32(0.2 if place < 5 else -0.2)
        assert np.array_equal(made["x"], np.clip(own["x"] + step * difference, low, high))
        assert made["size"] is own["size"] and made["mask"] is own["mask"]


def test_copies_of_single_numbers_are_arrays() -> None:
    """ONNX Runtime takes no NumPy scalar."""
    found = varied([{"x": np.array(number, np.float32)} for number in range(3)])
    assert len(found) == 9
    assert all(isinstance(feed["x"], np.ndarray) and feed["x"].dtype == np.float32 for feed in found)


def test_samples_without_floats_of_one_shape_are_not_copied() -> None:
    tokens = [{"ids": np.arange(4)}] * 3
    assert varied(tokens) == tokens and len(varied(_images(1, 4)[:1])) == 1
    ragged = [{"x": np.ones((1, size), np.float32)} for size in (2, 3, 4)]
    assert all(made["x"] is feed["x"] for made, feed in zip(varied(ragged)[3:], ragged * 2, strict=True))


@pytest.mark.parametrize(("count", "copies"), ((2, 3), (10, 3), (11, 1), (30, 1)))
def test_noise_is_a_share_of_the_deviation_of_an_input(count: int, copies: int) -> None:
    """Its own deviation, of 2,000 numbers far from the ends, is known to 5 %: three standard errors."""
    random = np.random.default_rng(4)
    data = [np.clip(random.standard_normal((1, 2000)), -1, 1).astype(np.float32) for _ in range(count)]
    feeds = [{"x": 0.1 * one, "ends": np.array([-9.0, 9.0], np.float32), "ids": np.arange(4)} for one in data]
    found = noisy(feeds)
    assert len(found) == copies * count
    deviation = np.std([feed["x"] for feed in feeds])
    for place, made in enumerate(found):
        own = feeds[place // copies]
        level = (0.1, 0.3, 0.5)[place % 3]
        inside = np.abs(own["x"]) < 0.05  # two deviations of the noise from the ends
        difference = (made["x"] - own["x"])[inside]
        if level == 0.1:
            assert np.std(difference) == pytest.approx(level * deviation, rel=0.1)
        assert 0 < np.std(difference) < 1.1 * level * deviation
        assert made["x"].dtype == np.float32 and np.abs(made["x"]).max() <= np.float32(0.1)
        assert made["ids"] is own["ids"] and np.abs(made["ends"]).max() <= 9
    assert all(np.array_equal(one["x"], other["x"]) for one, other in zip(found, noisy(feeds), strict=True))


def test_images_of_bytes_have_noise() -> None:
    """Its deviation, and that of rounding it, is known to 4 % of 3,072 pixels; other bytes have none."""
    pixels = np.random.default_rng(4).integers(118, 138, (1, 3, 32, 32)).astype(np.uint8)
    ends = np.where(pixels > 127, np.uint8(255), np.uint8(0))
    found = noisy([{"x": pixels, "codes": pixels[0]}, {"x": ends, "codes": pixels[0]}])
    assert len(found) == 6
    for level, made in zip((0.1, 0.3, 0.5), found, strict=False):
        noise = made["x"].astype(np.float64) - pixels
        deviation = np.hypot(level * pixels.std(), (1 / 12) ** 0.5)
        assert made["x"].dtype == np.uint8 and made["codes"].tobytes() == pixels[0].tobytes()
        assert np.std(noise) == pytest.approx(deviation, rel=0.1) and abs(noise.mean()) < 0.2


def test_what_takes_no_noise() -> None:
    """Integers, numbers that are all the same, infinite ones, none at all."""
    same = [{"ids": np.arange(4), "one": np.ones(3, np.float32), "mask": np.array([0, -np.inf], np.float32)}]
    words = [{"words": np.array([["one", "two"]])}] * 2
    assert noisy(words) == mosaics(words) == []
    assert noisy(same * 3) == noisy([]) == noisy([{"x": np.zeros((0, 4), np.float32)}]) == []


def test_errors_of_copies_are_added_to_those_of_their_samples() -> None:
    data = tunable.samples(CONV, 6)
    float_graph, quantized = tunable.pair(CONV, "W4A8", data)
    feeds = varied(data)
    parts = [OutputError(float_graph, feeds[i : i + 6]).each(quantized) for i in (0, 6, 12)]
    judge = OutputError(float_graph, feeds, samples=6)
    for places in (None, [4, 1]):
        found = judge.opened(quantized, places)({})
        own = slice(None) if places is None else places
        np.testing.assert_allclose(found.errors, sum(part.errors[own] for part in parts), rtol=1e-6)
        np.testing.assert_allclose(found.powers, sum(part.powers[own] for part in parts), rtol=1e-6)
