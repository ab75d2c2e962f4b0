"""Variants of a quantization beyond its ranges, which are compared like settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_graphsurgeon as gs


@dataclass(frozen=True)
class Candidate:
    """Other keys of the scheme, and what is done to the prepared float graph before it is quantized.

    ``rewrite`` edits a graph in place, without changing what it computes, and returns how many places it
    changed: a candidate that changes none is passed over. ``expected`` and ``spread`` are the gain in dB that
    it has on other models, and how much that differs. ``show`` adds to a graph what the rewrite would make of
    its tensors, by their new names.
    """

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    rewrite: Callable[[gs.Graph], int] | None = None
    expected: float = 0.0
    spread: float = 1.5
    show: Callable[[gs.Graph], int] | None = None
