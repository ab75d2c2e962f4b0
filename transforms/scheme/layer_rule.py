"""The rule of a scheme for some nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ops.legal_names import refuse_unknown
from transforms.scheme.scheme_values import SchemeTable, checked_value


@dataclass(frozen=True)
class LayerRule(SchemeTable):
    """Formats and granularity of some nodes; None follows the rest of the model."""

    activation: str | None = None
    weight: str | None = None
    bias: str | None = None
    dynamic: bool | None = None
    per_channel: bool | None = None
    weight_method: str | None = None

    @property
    def label(self) -> str:
        """The format, or ``activation/weight`` if they differ."""
        if self.activation == self.weight:
            return str(self.activation)
        return f"{self.activation}/{self.weight}"


IN_FLOAT = LayerRule("float32", "float32")
"""The rule of layers that stay float."""


def make_rule(pattern: str, value: object) -> LayerRule:
    """Return the rule given as a rule, a table of its keys, or one format for activation and weight.

    Raises ValueError naming the pattern and the key for anything else.
    """
    rule = value if isinstance(value, LayerRule) else None
    if rule is not None:
        value = rule.said
    if isinstance(value, str):
        return LayerRule(value, value)
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"layers entry '{pattern}' is {value!r}, it must be a format or a table of keys")
    for key, setting in value.items():
        refuse_unknown(str(key), LayerRule.key_names(), f"layers entry '{pattern}': key")
        kind = bool if key in ("dynamic", "per_channel") else str
        if not isinstance(setting, kind):
            legal = "true or false" if kind is bool else "the name of a format"
            raise ValueError(f"layers entry '{pattern}': {key} is {setting!r}, it must be {legal}")
        if key == "weight_method":
            checked_value(key, "str", setting)
    return rule or LayerRule(**value)
