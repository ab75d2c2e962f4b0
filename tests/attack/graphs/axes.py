"""Rules for Pad, Resize and CenterCropPad that name their axes, between layers and between Transposes."""

from __future__ import annotations

import numpy as np

from tests.attack.graphs.layers import image
from tests.attack.graphs.moves import Rule, some_axes
from tests.attack.graphs.scope import Rejected, Scope


def axes_between(s: Scope) -> None:
    """One of the operators, or two in a row, on the axes of space, as exporters and users write it."""
    if s.case.opset < 18:
        raise Rejected("no axes here")
    x = image(s, 2)
    around = s.case.one_of(("convs", "transposes", "both"))
    if around != "transposes":
        x = pointwise(s, x)
    if around != "convs":
        x = s.add("Transpose", [x], perm=[0, 2, 3, 1])
    for _ in range(int(s.case.rng.integers(1, 3))):
        x = s.case.one_of((_pad, _resize, _crop))(s, x, [1, 2] if around != "convs" else [2, 3])
    if around != "convs":
        x = s.add("Transpose", [x], perm=[0, 3, 1, 2])
    if around != "transposes" or s.case.chance(0.5):
        pointwise(s, x)


def pointwise(s: Scope, x: str) -> str:
    """Return a Conv with a kernel of ones on a tensor, which may keep its channels or not."""
    array = s.of(x)
    out = int(s.case.rng.integers(1, 4))
    weight = s.weight([out, array.shape[1], *(1 for _ in array.shape[2:])], array.dtype, 0.6)
    bias = [s.weight([out], array.dtype)] if s.case.chance(0.5) else []
    return str(s.add("Conv", [x, weight, *bias]))


def _places(s: Scope, x: str, space: list[int]) -> list[int]:
    """Return one or two of the axes of space in any order, counted from either end."""
    chosen = [space[i] for i in some_axes(s, 2)]
    return [a - s.of(x).ndim if s.case.chance(0.4) else a for a in chosen]


def _pad(s: Scope, x: str, space: list[int]) -> str:
    axes = _places(s, x, space)
    pads = s.integers(s.case.rng.integers(0, 3, 2 * len(axes)))
    value = s.constant(np.asarray(0.7, s.of(x).dtype)) if s.case.chance(0.3) else ""
    mode = s.case.one_of((None, "constant", "edge"))
    return str(s.add("Pad", [x, pads, value, s.integers(axes)], mode=mode))


def _resize(s: Scope, x: str, space: list[int]) -> str:
    axes = _places(s, x, space)
    factors = s.case.rng.choice([0.5, 1.5, 2, 2], len(axes)).astype(np.float32)
    mode = s.case.one_of(("nearest", "nearest", "linear"))
    place = s.case.one_of((None, "asymmetric", "align_corners"))
    given = [s.constant(factors, plain=True)]
    if s.case.chance(0.4):
        sizes = [max(int(s.of(x).shape[a] * f), 1) for a, f in zip(axes, factors, strict=True)]
        given = ["", s.integers(sizes)]
    return str(s.add("Resize", [x, "", *given], axes=axes, mode=mode, coordinate_transformation_mode=place))


def _crop(s: Scope, x: str, space: list[int]) -> str:
    axes = _places(s, x, space)
    sizes = s.integers(s.case.rng.integers(2, 7, len(axes)))
    return str(s.add("CenterCropPad", [x, sizes], axes=axes))


RULES: dict[Rule, float] = {axes_between: 4}
