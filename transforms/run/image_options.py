"""How images of a folder become inputs, as a user asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KEYWORD = "preprocess"
"""The option that names a scale, or a function that makes inputs of images."""

SCALINGS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "mobilenet": ((127.5,), (127.5,)),
    "zero-one": ((0.0,), (255.0,)),
}
"""Usual means and scales of pixels by name: torchvision's networks, -1 to 1, and 0 to 1."""


@dataclass(frozen=True)
class ImageOptions:
    """How an image becomes an input: resized to ``size`` (height, width), then (pixel - mean) / std.

    Pixels count from 0 to 255. ``mean`` and ``std`` have one number or one per channel. ``layout`` is "NCHW"
    or "NHWC". What is None follows from the model's input, NCHW if both would do. ``transform``: instead, a
    function that makes an array of a PIL image, or ``FILE.py:FUNCTION``, of which each process loads its own.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str | None = None
    transform: str | Callable[[Any], object] | None = None
