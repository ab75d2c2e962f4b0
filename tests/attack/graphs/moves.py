"""Rules for operators that move numbers, or make them from shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.attack.graphs.scope import Rejected, Scope


def axis_of(s: Scope, rank: int) -> int:
    """Return an axis, counted from either end."""
    if not rank:
        raise Rejected("no axis")
    return int(s.case.rng.integers(-rank if s.case.opset >= 11 else 0, rank))


def some_axes(s: Scope, rank: int, least: int = 1) -> list[int]:
    """Return different axes in any order."""
    count = int(s.case.rng.integers(min(least, rank), rank + 1))
    chosen = s.case.rng.permutation(rank)[:count]
    return [int(a) - rank * (s.case.opset >= 11 and s.case.chance(0.3)) for a in chosen]


def reshape(s: Scope) -> None:
    x = s.float()
    array = s.of(x)
    if not array.size:
        s.add("Reshape", [x, s.integers([0] * array.ndim)])
        return
    shape, left = [], array.size
    while left > 1 and len(shape) < 4:
        factor = s.case.one_of([f for f in range(1, left + 1) if left % f == 0])
        shape.append(factor)
        left //= factor
    shape += [left] if left > 1 or not shape else []
    if s.case.chance(0.5):
        shape[int(s.case.rng.integers(len(shape)))] = -1
    for i, size in enumerate(shape):
        if i < array.ndim and size == array.shape[i] and s.case.chance(0.5):
            shape[i] = 0
    allow = 1 if s.case.opset >= 14 and 0 not in shape and s.case.chance(0.1) else None
    s.add("Reshape", [x, s.integers(shape)], allowzero=allow)


def flatten(s: Scope) -> None:
    x = s.float()
    s.add("Flatten", [x], axis=axis_of(s, s.of(x).ndim + 1) if s.case.chance(0.7) else None)


def transpose(s: Scope) -> None:
    x = s.float(least=2)
    order = [int(i) for i in s.case.rng.permutation(s.of(x).ndim)]
    s.add("Transpose", [x], perm=order if s.case.chance(0.8) else None)


def _with_axes(s: Scope, op: str, x: str, axes: list[int] | None, since: int = 13, **attrs: Any) -> None:
    """Add an operator whose axes are an attribute, and an input in newer opsets."""
    if axes is None or s.case.opset < since:
        s.add(op, [x], axes=axes, **attrs)
    else:
        s.add(op, [x, s.integers(axes)], **attrs)


def unsqueeze(s: Scope) -> None:
    x = s.float()
    rank = s.of(x).ndim
    count = int(s.case.rng.integers(1, 3))
    axes = sorted(int(a) for a in s.case.rng.permutation(rank + count)[:count])
    if s.case.opset >= 11 and s.case.chance(0.3):
        axes = [a - rank - count for a in axes]
    _with_axes(s, "Unsqueeze", x, axes)


def squeeze(s: Scope) -> None:
    x = s.float()
    if 1 not in s.of(x).shape:
        unsqueeze(s)
        return
    ones = [i for i, size in enumerate(s.of(x).shape) if size == 1]
    _with_axes(
        s, "Squeeze", x, ones[: int(s.case.rng.integers(1, len(ones) + 1))] if s.case.chance(0.8) else None
    )


def concat(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    axis = axis_of(s, array.ndim)
    names = [x]
    for _ in range(int(s.case.rng.integers(0, 3))):
        shape = list(array.shape)
        shape[axis] = s.case.size()
        names.append(s.float(shape, dtype=array.dtype) if s.case.chance(0.7) else x)
    s.add("Concat", [names[i] for i in s.case.rng.permutation(len(names))], axis=axis)


def split(s: Scope) -> None:
    x = s.float(least=1)
    axis = axis_of(s, s.of(x).ndim)
    size = s.of(x).shape[axis]
    if size < 2:
        raise Rejected("nothing to split")
    cut = int(s.case.rng.integers(1, size))
    sizes = [cut, size - cut]
    even = size % 2 == 0 and s.case.chance(0.5)
    if even and s.case.opset >= 18:
        s.add("Split", [x], 2, axis=axis, num_outputs=2)
    elif even:
        s.add("Split", [x], 2, axis=axis)
    elif s.case.opset < 13:
        s.add("Split", [x], 2, axis=axis, split=sizes)
    else:
        s.add("Split", [x, s.integers(sizes)], 2, axis=axis)


def slice_(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    axes = some_axes(s, array.ndim)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = array.shape[axis]
        back = s.case.opset >= 10 and s.case.chance(0.3)
        start, end = sorted(int(i) for i in s.case.rng.integers(-1 if back else 0, size + 1, 2))
        starts.append(end if back else start)
        ends.append((start if start >= 0 else -(2**40)) if back else s.case.one_of((end, 2**40, 2**63 - 1)))
        steps.append(-int(s.case.rng.integers(1, 3)) if back else int(s.case.rng.integers(1, 3)))
    if s.case.opset < 10:
        s.add("Slice", [x], starts=starts, ends=ends, axes=axes)
        return
    given = [s.integers(starts), s.integers(ends), s.integers(axes)]
    s.add("Slice", [x, *given, *([s.integers(steps)] if min(steps) < 0 or s.case.chance(0.5) else [])])


def _indices(s: Scope, shape: Any, size: int) -> str:
    if not size:
        raise Rejected("nothing to choose from")
    low = -size if s.case.opset >= 11 and s.case.chance(0.4) else 0
    return s.integers(s.case.rng.integers(low, size, shape), s.case.one_of((np.int64, np.int32)))


def gather(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    axis = axis_of(s, array.ndim)
    shape = [s.case.size() for _ in range(int(s.case.rng.integers(0, 3)))]
    s.add("Gather", [x, _indices(s, shape, array.shape[axis])], axis=axis)


def gather_elements(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    axis = axis_of(s, array.ndim)
    shape = list(array.shape)
    shape[axis] = s.case.size()
    s.add("GatherElements", [x, _indices(s, shape, array.shape[axis])], axis=axis)


def scatter_elements(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    axis = axis_of(s, array.ndim)
    size = array.shape[axis]
    order = np.argsort(s.case.rng.random(array.shape), axis=axis)  # no place twice
    updates = s.float(array.shape, dtype=array.dtype)
    op = "Scatter" if s.case.opset < 11 else "ScatterElements"
    reduction = s.case.one_of((None, "none", "add", "mul", *(("max", "min") if s.case.opset >= 18 else ())))
    if not size:
        raise Rejected("nothing to scatter to")
    s.add(op, [x, s.integers(order), updates], axis=axis, reduction=reduction if s.case.opset >= 16 else None)


def gather_nd(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    depth = int(s.case.rng.integers(1, array.ndim + 1))
    if not array.size:
        raise Rejected("nothing to gather")
    places = [s.case.rng.integers(0, size, 3) for size in array.shape[:depth]]
    at = s.integers(np.stack(places, -1))
    if s.case.chance(0.5):
        s.add("GatherND", [x, at])
        return
    unique = np.unique(np.stack(places, -1), axis=0)
    updates = s.float([len(unique), *array.shape[depth:]], dtype=array.dtype)
    reduction = s.case.one_of((None, "add", "mul")) if s.case.opset >= 16 else None
    s.add("ScatterND", [x, s.integers(unique), updates], reduction=reduction)


def expand(s: Scope) -> None:
    x = s.float()
    shape = [int(s.case.rng.integers(1, 4)) if size == 1 else size for size in s.of(x).shape]
    s.add("Expand", [x, s.integers([*([2] if s.case.chance(0.4) else []), *shape])])


def tile(s: Scope) -> None:
    x = s.float(least=1)
    s.add("Tile", [x, s.integers(s.case.rng.integers(1, 3, s.of(x).ndim))])


def pad(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if s.case.opset >= 19 else [])]
    mode = s.case.one_of(modes)
    pads = s.case.rng.integers(0, 3, 2 * array.ndim)
    if mode in ("reflect", "wrap"):
        pads = np.minimum(pads, np.tile(np.array(array.shape) - 1, 2)).clip(0)
    value = s.case.one_of((None, 0.0, 0.7))
    mode = None if mode == "constant" and s.case.chance(0.5) else mode
    if s.case.opset < 11:
        s.add("Pad", [x], pads=[int(p) for p in pads], mode=mode, value=value)
        return
    extra = [] if value is None else [s.constant(np.asarray(value, array.dtype))]
    if s.case.opset >= 18 and s.case.chance(0.3):
        axes = some_axes(s, array.ndim)
        ends = [int(pads[a % array.ndim + array.ndim * side]) for side in (0, 1) for a in axes]
        s.add("Pad", [x, s.integers(ends), extra[0] if extra else "", s.integers(axes)], mode=mode)
    else:
        s.add("Pad", [x, s.integers(pads), *extra], mode=mode)


def depth_space(s: Scope) -> None:
    n, c, h, w = (int(i) for i in s.case.rng.integers(1, 3, 4))
    if s.case.chance(0.5):
        mode = s.case.one_of((None, "DCR", "CRD")) if s.case.opset >= 11 else None
        s.add("DepthToSpace", [s.float([n, 4 * c, h, w])], blocksize=2, mode=mode)
    else:
        s.add("SpaceToDepth", [s.float([n, c, 2 * h, 2 * w])], blocksize=2)


def choose(s: Scope) -> None:
    """Operators whose result has a size that depends on numbers."""
    op = s.case.one_of(("Compress", "NonZero", "Unique"))
    x = s.float(least=1)
    array = s.of(x)
    if op == "NonZero":
        s.add(op, [x])
    elif op == "Unique":
        s.add(op, [x], 4, sorted=s.case.one_of((None, 1)))
    else:
        axis = axis_of(s, array.ndim) if s.case.chance(0.7) else None
        size = array.size if axis is None else array.shape[axis]
        s.add(op, [x, s.constant(s.case.numbers([size], bool))], axis=axis)


def triangle(s: Scope) -> None:
    x = s.float(least=2)
    k = [s.integers(int(s.case.rng.integers(-1, 2)))] if s.case.chance(0.5) else []
    s.add("Trilu", [x, *k], upper=s.case.one_of((None, 0, 1)))


def reverse_sequence(s: Scope) -> None:
    x = s.float(least=2)
    time, batch = s.of(x).shape[:2]
    lengths = s.integers(s.case.rng.integers(1, max(time, 1) + 1, batch))
    swapped = {"time_axis": 1, "batch_axis": 0} if time == batch and s.case.chance(0.5) else {}
    s.add("ReverseSequence", [x, lengths], **swapped)


Rule = Callable[[Scope], None]
RULES: dict[Rule, float] = {
    **{reshape: 3, flatten: 1, transpose: 3, unsqueeze: 1.5, squeeze: 1, concat: 3, split: 2, slice_: 2},
    **{gather: 2, gather_elements: 0.7, scatter_elements: 0.7, gather_nd: 1, expand: 1, tile: 0.7, pad: 2},
    **{depth_space: 1, choose: 0.5, triangle: 0.4, reverse_sequence: 0.4},
}
