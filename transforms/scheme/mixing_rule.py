"""The table ``[auto_mixed_precision]`` of a scheme."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ops.legal_names import refuse_unknown
from transforms.graph.dot_products import DOT_PRODUCTS
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme_values import SchemeTable
from transforms.search.target import EVALUATE, LOST_TOP1, Target

MIXING = "auto_mixed_precision"

TARGETS: Mapping[str, tuple[str, bool]] = {
    "l2_target": ("l2", False),
    "sqnr_target": ("sqnr", False),
    "sqnr_drop_target": ("sqnr", True),
    "top1_target": (LOST_TOP1, False),
    "kl_target": ("kl", False),
    "evaluate_target": (EVALUATE, True),
}
"""The metric that each key bounds, and whether the bound is relative."""

_RANGES: Mapping[str, tuple[float, float]] = {
    "output_index": (-1, math.inf),
    "l2_target": (0, math.inf),
    "sqnr_target": (-math.inf, math.inf),
    "sqnr_drop_target": (0, math.inf),
    "top1_target": (0, 1),
    "kl_target": (0, math.inf),
    "evaluate_target": (0, math.inf),
    "bits_target": (0, math.inf),
    "size_target": (0, math.inf),
}

BUDGETS = ("bits_target", "size_target")
"""Keys of which a scheme may have one: bits per weight, or bytes of the file."""


@dataclass(frozen=True)
class MixingRule(SchemeTable):
    """Which layers may get other formats than the scheme's, and the target for the outputs.

    docs/reference/scheme.md describes each key. Formats are those of ``target``, such as ``int8`` or
    ``int8/int4`` for activation and weight, or of ``activation_target`` and ``weight_target``. Layers are
    dot products. There is at most one target for the outputs and one budget; without both, every layer gets
    the other format (:func:`transforms.precision.assign.assign`). The constructor raises ValueError naming
    key, value and the legal values, also for keys without effect.
    """

    target: str | tuple[str, ...] = ()
    activation_target: str = ""
    weight_target: str = ""
    target_op_types: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    dual_quant_nodes: bool = False
    l2_target: float | None = None
    sqnr_target: float | None = None
    sqnr_drop_target: float | None = None
    top1_target: float | None = None
    kl_target: float | None = None
    evaluate_target: float | None = None
    evaluate: str = ""
    output_index: int = -1
    bits_target: float | None = None
    size_target: int | None = None

    def __post_init__(self) -> None:
        """Check every value, and that keys are compatible."""
        self._check_types(MIXING)
        self._check_ranges(MIXING, _RANGES)
        self._check_names()
        self._check_formats()
        self._check_targets()
        self._check_budget()

    def choices(self, activation: str, weight: str) -> tuple[LayerRule, ...]:
        """Return the formats that layers may get, given those of the scheme."""
        if not self.target:
            return (LayerRule(self.activation_target or activation, self.weight_target or weight),)
        parts = [label.partition("/") for label in self.target]
        return tuple(LayerRule(first, second if slash else first) for first, slash, second in parts)

    @property
    def bound(self) -> Target | None:
        """The target, if there is one; that of ``evaluate`` is relative to the float model."""
        for key, (metric, relative) in TARGETS.items():
            limit = getattr(self, key)
            if limit is not None:
                return Target(metric, limit, relative)
        return None

    @property
    def has_budget(self) -> bool:
        """Whether the bits of weights are limited."""
        return any(getattr(self, key) is not None for key in BUDGETS)

    @property
    def is_of_size(self) -> bool:
        """Whether a budget alone decides how many layers change."""
        return self.bound is None and self.has_budget

    @property
    def measured_by(self) -> str:
        """The metric of sensitivities: that of the target, or ``sqnr``.

        A single layer makes few rows wrong: for these the sensitivity is the KL divergence.
        """
        metric = "sqnr" if self.bound is None else self.bound.metric
        return "kl" if metric == LOST_TOP1 else metric

    def _check_names(self) -> None:
        for op in self.target_op_types:
            refuse_unknown(op, DOT_PRODUCTS, _place("target_op_types"))

    def _check_formats(self) -> None:
        apart = self.activation_target or self.weight_target
        if self.target and apart:
            raise ValueError(
                f"{_place('target')} cannot be combined with activation_target and weight_target"
            )
        if not self.target and not apart:
            raise ValueError(f"{_place('target')} is missing: the format, or formats, that layers may get")
        if len(set(self.target)) < len(self.target):
            raise ValueError(f"{_place('target')} names a format twice: {', '.join(self.target)}")

    def _check_targets(self) -> None:
        targets = [key for key in TARGETS if getattr(self, key) is not None]
        if len(targets) > 1:
            raise ValueError(f"{_place(targets[0])} and {targets[1]} cannot be combined: there is one target")
        if bool(self.evaluate) != (self.evaluate_target is not None):
            raise ValueError(
                f"{_place('evaluate')}, FILE.py:FUNCTION, and evaluate_target require each other"
            )
        if self.evaluate:
            from transforms.search.user_metric import split_place

            split_place(self.evaluate)

    def _check_budget(self) -> None:
        given = [key for key in BUDGETS if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"{_place(given[0])} and {given[1]} cannot be combined")
        if self.size_target is not None and self.bound is not None:
            raise ValueError(f"{_place('size_target')} cannot be combined with a target of the outputs")


def _place(key: str) -> str:
    return f"{MIXING} {key}"
