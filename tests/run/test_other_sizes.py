"""Sizes that are proposed for free dimensions. Oracle: relations that sizes of decoders and images have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from transforms.run.other_sizes import FreeSize, free_sizes_in, proposals, resized

Shape = list[int | str | None]


def _free(shapes: Mapping[str, Shape], sizes: Mapping[str, tuple[int, ...]]) -> list[FreeSize]:
    inputs = [gs.Variable(name, np.float32, shape) for name, shape in shapes.items()]
    return free_sizes_in(inputs, {name: np.zeros(size, np.float32) for name, size in sizes.items()})


def test_dimensions_of_a_symbol_are_one_size() -> None:
    free = _free({"a": ["n", 3, None], "b": ["n", None]}, {"a": (2, 3, 5), "b": (2, 5)})
    assert {one.name: (one.size, len(one.places)) for one in free} == {
        "n": (2, 2),
        "a[2]": (5, 1),
        "b[1]": (5, 1),
    }


DECODER: dict[str, Shape] = {"ids": ["b", "s"], "mask": ["b", "t"], "key": ["b", 4, "p", 8]}
UNNAMED: dict[str, Shape] = {
    "ids": [None, None],
    "mask": [None, None],
    **{f"key{i}": [None, 4, None, 8] for i in range(20)},
}


def _sum_holds(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    keys = {shape for name, shape in shapes.items() if name.startswith("key")}
    (batch, new), (rows, total) = shapes["ids"], shapes["mask"]
    return len(keys) == 1 and keys == {(batch, 4, total - new, 8)} and rows == batch


@pytest.mark.parametrize("past", [0, 6])
@pytest.mark.parametrize("shapes", [DECODER, UNNAMED], ids=["symbols", "unnamed"])
def test_sizes_that_sum_up_are_found(shapes: dict[str, Shape], past: int) -> None:
    """Of a decoder: new tokens and those of the cache are those of the mask."""
    sizes: dict[str, tuple[int, ...]] = {"ids": (1, 5), "mask": (1, 5 + past)}
    sizes |= {name: (1, 4, past, 8) for name in shapes if name.startswith("key")}
    assert _left(shapes, sizes, _sum_holds) == set()


def _left(
    shapes: Mapping[str, Shape],
    sizes: Mapping[str, tuple[int, ...]],
    takes: Callable[[Mapping[str, tuple[int, ...]]], bool],
) -> set[str]:
    """Return the free sizes that no proposal changed which a model takes."""
    free = _free(shapes, sizes)
    feed = {name: np.zeros(size, np.float32) for name, size in sizes.items()}
    found = set[FreeSize]()
    for made in proposals(free):
        if takes({name: array.shape for name, array in resized(feed, made).items()}):
            assert all(size != one.size for one, size in made.items())
            found |= made.keys()
    return {one.name for one in free if one not in found}


def test_images_keep_whole_tiles() -> None:
    left = _left(
        {"x": ["n", 3, "h", "w"]}, {"x": (1, 3, 640, 224)}, lambda s: s["x"][2] % 32 == s["x"][3] % 32 == 0
    )
    assert not left


def test_sizes_need_not_shrink() -> None:
    free = _free({"x": ["n", "t"]}, {"x": (1, 9)})
    assert all(size > one.size for made in proposals(free, may_shrink=False) for one, size in made.items())


def test_numbers_are_those_of_the_sample() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (n, t) = _free({"x": ["n", "t"]}, {"x": (2, 3)})
    np.testing.assert_array_equal(resized({"x": x}, {n: 3, t: 2})["x"], [[0, 1], [3, 4], [0, 1]])
    (empty,) = _free({"x": [2, "t"]}, {"x": (2, 0)})
    np.testing.assert_array_equal(resized({"x": x[:, :0]}, {empty: 2})["x"], np.zeros((2, 2)))
