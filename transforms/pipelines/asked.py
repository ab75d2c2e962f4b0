"""Whether a job is asked for what its last steps do: looked up before these are imported."""

from __future__ import annotations

from transforms.conversion.record import MASKED
from transforms.judge.budget import too_large
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.targets import ON_CPU

_TIED_BITS = (4, 8)


def keeps_lossy(work: Work) -> bool:
    """Return whether layers may stay float that carry most of the loss.

    Not where biases were parted: formats of layers tell which are.
    """
    is_asked = _may_choose(work) and work.options.fallback == FLOAT32 and may_keep(work.asked)
    return is_asked and not work.record.changes[MASKED]


def may_keep(scheme: Scheme) -> bool:
    """Return whether layers may stay float in the model of a scheme, beside integers of 8 bits."""
    activation = scheme.format(scheme.activation)
    is_narrow = activation is not None and activation.is_integer and activation.bits <= 8
    return bool(is_narrow and scheme.keep_float and scheme.target in ("", ON_CPU) and not scheme.finetune)


def places(work: Work) -> bool:
    """Return whether layers are looked for that are faster in float."""
    is_wanted = work.asked.keep_float and work.asked.target == ON_CPU and work.options.times
    return bool(is_wanted and work.data is not None and work.options.compares and not too_large(work.graph))


def stores_tied(work: Work) -> bool:
    """Return whether tables that heads read too may be in int8: weights have 4 or 8 bits, and no goal."""
    scheme, options = work.scheme, work.options
    weight = scheme.format(scheme.weight)
    if weight is None or not weight.is_integer or weight.bits not in _TIED_BITS or scheme.scale != "float":
        return False
    keys = scheme.keep_weight_nodes, scheme.auto_mixed_precision, scheme.finetune
    others = options.tuning, options.fixed, options.embeddings, options.goal
    is_wanted = options.stores_tied and scheme.activation == FLOAT32 and scheme.target in ("", ON_CPU)
    return is_wanted and not any((*keys, *others))


def holds_against_preset(work: Work) -> bool:
    """Return whether a model is held against the scheme without its target."""
    return _chooses_layers(work) and work.asked.target == ON_CPU and not work.asked.finetune


def compares_outputs(work: Work) -> bool:
    """Return whether outputs may be compared: on samples, or random numbers that products are rounded at."""
    return work.options.may_compare and (work.data is not None or work.scheme.is_dynamic)


def shows_comparison(work: Work) -> tuple[str, ...]:
    """Return the phase of comparing outputs, if they are compared whatever comes of the model."""
    is_sure = work.options.compares or work.options.changes_last or work.data is None
    return ("comparing outputs",) if is_sure else ()


def _chooses_layers(work: Work) -> bool:
    return _may_choose(work) and work.options.goal is None


def _may_choose(work: Work) -> bool:
    return work.data is not None and work.options.tuning is None and not work.options.fixed
