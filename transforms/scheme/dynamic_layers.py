"""Products that round their activations at run time: what else they may be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transforms.scheme.layer_rule import LayerRule

if TYPE_CHECKING:
    from transforms.scheme.scheme import Scheme

_ACTIVATION = "float32"
_WEIGHTS = ("int8", "uint8")


def check_dynamic(scheme: Scheme) -> None:
    """Raise ValueError naming a key that does not go with ``dynamic``, of a scheme or its ``layers``."""
    parts: dict[str, Scheme | LayerRule] = {"": scheme}
    parts |= {f"layers entry '{pattern}': ": rule for pattern, rule in scheme.layers.items()}
    for place, part in parts.items():
        if not part.dynamic:
            continue
        activation, weight = part.activation or _ACTIVATION, part.weight or scheme.weight
        if activation != _ACTIVATION:
            raise ValueError(f"{place}dynamic requires activation = '{_ACTIVATION}', not '{activation}'")
        if weight not in _WEIGHTS:
            legal = " or ".join(f"'{name}'" for name in _WEIGHTS)
            raise ValueError(f"{place}dynamic requires weight = {legal}, not '{weight}'")
        if scheme.keep_weight_nodes:
            raise ValueError(
                f"{place}dynamic cannot be combined with keep_weight_nodes, which keeps float weights"
            )
