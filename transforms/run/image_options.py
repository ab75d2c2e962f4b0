"""Options of reading images as inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KEYWORD = "preprocess"
"""The option that names a scaling, or a function from images to inputs."""

SCALINGS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "mobilenet": ((127.5,), (127.5,)),
    "zero-one": ((0.0,), (255.0,)),
}
"""Usual means and scales of pixels by name: torchvision's networks, -1 to 1, and 0 to 1."""


@dataclass(frozen=True)
class ImageOptions:
    """How an image becomes an input: resized to ``size`` (height, width), then (pixel - mean) / std.

    Pixels range from 0 to 255. ``mean`` and ``std`` have one number or one per channel. ``layout`` is "NCHW"
    or "NHWC". None is replaced by what the model's input requires, NCHW if both fit. ``transform``: instead
    of all this, a function from a PIL image to an array, or ``FILE.py:FUNCTION``, which each process loads
    itself.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str | None = None
    transform: str | Callable[[Any], object] | None = None
