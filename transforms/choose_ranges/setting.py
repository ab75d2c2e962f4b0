"""Settings of a whole model that are compared: how ranges are found, and how weights get their scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme import AUTO
from transforms.scheme.scheme_values import SPREAD

EXTRAPOLATED = "Extrapolated"

_PER = {False: "tensor", True: "channel", SPREAD: "channel where they differ much"}


@dataclass(frozen=True)
class WeightKind:
    """How weights get their scales: keys of a scheme."""

    per_channel: bool | str
    weight_method: str

    @property
    def changes(self) -> dict[str, Any]:
        """The keys of a scheme that say it."""
        return {"per_channel": self.per_channel, "weight_method": self.weight_method}

    def __str__(self) -> str:
        method = "" if self.weight_method == AUTO else f"{self.weight_method} "
        return f"weights {method}per {_PER[self.per_channel]}"


@dataclass(frozen=True)
class Setting:
    """A method for ranges of activations and a kind of weights, and exceptions from both.

    ``corrected``: whether biases take back what rounding weights does on average. ``methods``: by the name of
    the tensor whose scale a group shares. ``kinds``: by the name of a layer.
    """

    method: str
    kind: WeightKind
    corrected: bool = False
    methods: Mapping[str, str] = field(default_factory=dict, hash=False)
    kinds: Mapping[str, WeightKind] = field(default_factory=dict, hash=False)

    def method_of(self, group: str) -> str:
        """Return how the range of a group of tensors is found."""
        return self.methods.get(group, self.method)

    def kind_of(self, layer: str) -> WeightKind:
        """Return how the weight of a layer gets its scale."""
        return self.kinds.get(layer, self.kind)

    @property
    def reaches_beyond(self) -> bool:
        """Whether ranges of groups follow from how the ends of samples scatter."""
        return EXTRAPOLATED in self.methods.values()

    def with_(self, **changes: Any) -> Setting:
        """Return the setting with other values."""
        return replace(self, **changes)

    def __str__(self) -> str:
        parts = [f"ranges {self.method}", str(self.kind), *(["biases corrected"] if self.corrected else [])]
        exceptions = Counter(self.methods.values())
        parts += [f"{count} tensor{'s'[: count - 1]} {method}" for method, count in exceptions.items()]
        return ", ".join(parts)


def setting_of(scheme: Scheme) -> Setting:
    """Return the setting of a scheme in which nothing is left open."""
    kind = WeightKind(scheme.per_channel, scheme.weight_method)
    return Setting(scheme.calibrate_method, kind, scheme.correct_biases is True)


def rule_of(kind: WeightKind) -> LayerRule:
    """Return the rule that gives a kind to a layer."""
    return LayerRule(per_channel=bool(kind.per_channel), weight_method=kind.weight_method)
