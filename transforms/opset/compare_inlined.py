"""Check that inlining local functions does not change what a model computes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ops.registration import AMD_DOMAIN, DOMAIN
from transforms.functions.attach_functions import TWINS
from transforms.graph.lazy_values import Weight
from transforms.graph.some_names import some_names
from transforms.model.local_functions import key_of, shown
from transforms.model.read_model import ModelError
from transforms.runtime.compare_runs import why_not_compared

_UNCHECKED = "Inlining of local functions not checked by a run"


def compare_inlined(
    before: onnx.ModelProto, after: onnx.ModelProto, weights: Mapping[str, Weight]
) -> list[str]:
    """Run a light model with local functions and its inlined form; return notes for the user.

    There is a note, with the reason, if the models could not be compared: because of size, time or
    peculiarities, as returned by :func:`transforms.runtime.compare_runs.why_not_compared`. Raises ModelError
    naming the output that differs by more than rounding, and the functions.
    """
    for function in before.functions:
        if function.domain in (DOMAIN, AMD_DOMAIN) and function.name in TWINS:
            why = f"'{shown(key_of(function))}' has the name of an operator that a run would take instead"
            return [f"{_UNCHECKED}: {why}"]
    try:
        reason = why_not_compared(before, after, weights, change="inlined")
    except ModelError as error:
        names = some_names([shown(key_of(function)) for function in before.functions])
        raise ModelError(f"inlining {names}: {error}") from error
    return [f"{_UNCHECKED}: {reason}"] if reason else []
