"""How images are converted to inputs, from the keywords of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from onnx_narrow.options.kinds import PREPROCESS
from ops.legal_names import did_you_mean
from transforms.files.spelling import UsageError, spelled
from transforms.run.image_options import KEYWORD, SCALINGS, ImageOptions

Preprocess: TypeAlias = str | Callable[[Any], Any]
"""A usual scale by name, ``FILE.py:FUNCTION``, or a function of a PIL image that returns an array."""

_OF_SCALE, _OF_IMAGES = ("mean", "std"), ("mean", "std", "image_size", "layout")


def image_options(keywords: Mapping[str, Any]) -> ImageOptions:
    """Return the image options of the keywords, in any form that callers may use.

    Raises UsageError for keywords that ``preprocess`` leaves without effect, ValueError for a name that it
    does not know, and as :func:`transforms.search.user_metric.load_function` does.
    """
    if keywords.keys().isdisjoint((KEYWORD, *_OF_IMAGES)):
        return ImageOptions()
    preprocess = keywords.get(KEYWORD)
    is_name = isinstance(preprocess, str) and preprocess in SCALINGS
    for name in () if preprocess is None else _OF_SCALE if is_name else _OF_IMAGES:
        if keywords.get(name) is not None:
            way = preprocess if isinstance(preprocess, str) else "a function"
            raise UsageError(spelled(f"{{{name}}} cannot be combined with {{{KEYWORD}}}") + f" '{way}'")
    mean, std = SCALINGS[preprocess] if is_name else (keywords.get("mean"), keywords.get("std"))  # type: ignore[index]
    return ImageOptions(
        _size(keywords.get("image_size")),
        _channels(mean, 0.0),
        _channels(std, 1.0),
        keywords.get("layout"),
        None if preprocess is None or is_name else _transform(preprocess),
    )


def _transform(preprocess: Preprocess) -> Preprocess:
    if callable(preprocess):
        return preprocess
    if ":" not in preprocess:
        near = did_you_mean(preprocess, SCALINGS)
        raise ValueError(f"{spelled(f'{{{KEYWORD}}}')} is {preprocess!r}, not {PREPROCESS.words}{near}")
    from transforms.search.user_metric import load_once

    load_once(preprocess, KEYWORD)
    return preprocess


def _size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None or not isinstance(size, int):
        return None if size is None else (size[0], size[1])
    return size, size


def _channels(numbers: float | Sequence[float] | None, default: float) -> tuple[float, ...]:
    if numbers is None:
        return (default,)
    return (float(numbers),) if isinstance(numbers, int | float) else tuple(map(float, numbers))
