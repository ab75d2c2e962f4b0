"""The scheme for a deployment target: its default, or the user's, checked against the target's rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from transforms.files.spelling import as_option
from transforms.scheme.scheme import AUTO, FLOAT32, POWER_OF_TWO, Scheme
from transforms.scheme.sources import preset
from transforms.scheme.targets import Target


def scheme_of(row: Target) -> Scheme:
    """Return the default scheme of a target."""
    return preset(row.preset).with_(**{**row.defaults, **row.adapted}, target=row.name)


def without_target(scheme: Scheme, row: Target) -> Scheme:
    """Return a scheme without its target: default keys get the preset's values."""
    plain = preset(row.preset)
    changed = [key for key, value in row.defaults.items() if getattr(scheme, key) == value]
    return scheme.with_(target="", **{key: getattr(plain, key) for key in changed})


def adapted(scheme: Scheme, row: Target) -> tuple[Scheme, list[str]]:
    """Return a user's scheme with the keys that the target prescribes, and a line for each of them.

    Only keys with the general default are adapted. Raises ValueError, naming key and rule, for a scheme that
    otherwise contradicts the target.
    """
    plain = {key.name: key.default for key in fields(Scheme)}
    changes = {key: value for key, value in row.adapted.items() if getattr(scheme, key) == plain[key]}
    changes = {key: value for key, value in changes.items() if getattr(scheme, key) != value}
    fitted = scheme.with_(**changes, target=row.name)
    for reason in _contradictions(fitted, row):
        raise ValueError(f"target '{row.name}': {reason}")
    return fitted, [f"For target {row.name}: {key} = {value}" for key, value in changes.items()]


def _contradictions(scheme: Scheme, row: Target) -> Iterator[str]:
    """Yield each setting of a scheme that contradicts the rules of a row."""
    for part, legal in (("activation", row.activations), ("weight", row.weights)):
        for place, name in _formats(scheme, part):
            if name not in legal and name != FLOAT32:
                yield f"{place} is {name}, it takes {' or '.join(legal)}"
    integers = [fmt for fmt in scheme.named_formats if fmt.is_integer]
    if not integers:
        return
    if row.power_of_two and scheme.scale != POWER_OF_TWO:
        yield f"scale is {scheme.scale}, all scales have to be powers of two: {as_option('config', 'XINT8')}"
    if row.symmetric and any(not scheme.is_symmetric(fmt) for fmt in integers):
        yield "activation_symmetric is false, zero points have to be 0"
    if not row.per_channel and scheme.per_channel is not False:
        way = as_option("per_channel", "False")
        yield f"per_channel is {scheme.per_channel}, a weight has one scale: {way}"
    if scheme.bias not in (AUTO, *row.biases):
        yield f"bias is {scheme.bias}, it takes {' or '.join(row.biases)}"
    if scheme.bias == AUTO and "int32" not in row.biases:
        yield f"bias is int32, it takes {' or '.join(row.biases)}"
    if scheme.qdq_domain not in row.qdq_domains:
        yield f"qdq_domain is '{scheme.qdq_domain}', it takes ONNX's own operators"
    if row.opsets and scheme.opset and not row.opsets[0] <= scheme.opset <= row.opsets[1]:
        yield f"opset is {scheme.opset}, it takes {row.opsets[0]} to {row.opsets[1]}"


def _formats(scheme: Scheme, part: str) -> Iterator[tuple[str, str]]:
    """Yield place and name of each format of activations, or of weights, in a scheme."""
    yield part, getattr(scheme, part)
    mixing = scheme.auto_mixed_precision
    for rule in mixing.choices(scheme.activation, scheme.weight) if mixing else ():
        yield f"auto_mixed_precision: {part} of '{rule.label}'", getattr(rule, part) or FLOAT32
    for pattern, layer in scheme.layers.items():
        yield f"layers entry '{pattern}': {part}", getattr(layer, part) or FLOAT32
