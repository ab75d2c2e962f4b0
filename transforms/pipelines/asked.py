"""Conditions under which a job enters its last steps, in a module that does not import these steps."""

from __future__ import annotations

from transforms.conversion.record import MASKED
from transforms.judge.budget import too_large
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.targets import ON_CPU

_TIED_BITS = (4, 8)


def keeps_lossy(work: Work) -> bool:
    """Return whether layers that carry most of the loss may stay in float.

    Not if biases with masks are added after their layers, since formats of layers determine which are.
    """
    is_asked = _may_choose(work) and work.options.fallback == FLOAT32 and may_keep(work.asked)
    return is_asked and not work.record.changes[MASKED]


def may_keep(scheme: Scheme) -> bool:
    """Return whether a scheme allows layers in float beside activations of at most 8 bits."""
    activation = scheme.format(scheme.activation)
    is_narrow = activation is not None and activation.is_integer and activation.bits <= 8
    return bool(is_narrow and scheme.keep_float and scheme.target in ("", ON_CPU) and not scheme.finetune)


def places(work: Work) -> bool:
    """Return whether to search for layers that are faster in float."""
    is_wanted = work.asked.keep_float and work.asked.target == ON_CPU and work.options.times
    return bool(is_wanted and work.data is not None and work.options.compares and not too_large(work.graph))


def stores_tied(work: Work) -> bool:
    """Return whether embedding tables that a head also reads may be stored in int8.

    The scheme quantizes weights alone, to 4 or 8 bits, without a target, tuning or mixed precision.
    """
    scheme, options = work.scheme, work.options
    weight = scheme.format(scheme.weight)
    if weight is None or not weight.is_integer or weight.bits not in _TIED_BITS or scheme.scale != "float":
        return False
    keys = scheme.keep_weight_nodes, scheme.auto_mixed_precision, scheme.finetune
    others = options.tuning, options.fixed, options.embeddings, options.goal
    is_wanted = options.stores_tied and scheme.activation == FLOAT32 and scheme.target in ("", ON_CPU)
    return is_wanted and not any((*keys, *others))


def holds_against_preset(work: Work) -> bool:
    """Return whether to compare the model with that of the same scheme without its target device."""
    return _chooses_layers(work) and work.asked.target == ON_CPU and not work.asked.finetune


def compares_outputs(work: Work) -> bool:
    """Return whether outputs may be compared: on samples, or on random feeds for dynamic quantization."""
    return work.options.may_compare and (work.data is not None or work.scheme.is_dynamic)


def shows_comparison(work: Work) -> tuple[str, ...]:
    """Return the phase of comparing outputs, if it is certain to be entered."""
    is_sure = work.options.compares or work.options.changes_last or work.data is None
    return ("comparing outputs",) if is_sure else ()


def _chooses_layers(work: Work) -> bool:
    return _may_choose(work) and work.options.goal is None


def _may_choose(work: Work) -> bool:
    return work.data is not None and work.options.tuning is None and not work.options.fixed
