"""Check the keys of products that round their activations at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transforms.scheme.layer_rule import LayerRule

if TYPE_CHECKING:
    from transforms.scheme.scheme import Scheme

_ACTIVATION = "float32"
_WEIGHTS = ("int8", "uint8")


def check_dynamic(scheme: Scheme) -> None:
    """Raise ValueError naming a key that is incompatible with ``dynamic``, in a scheme or its ``layers``."""
    sections: dict[str, Scheme | LayerRule] = {"": scheme}
    sections |= {f"layers entry '{pattern}': ": rule for pattern, rule in scheme.layers.items()}
    for place, part in sections.items():
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
