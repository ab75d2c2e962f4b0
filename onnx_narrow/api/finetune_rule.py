"""What the keywords of ``finetune`` say in the words of a scheme, and what metadata record of them."""

from __future__ import annotations

from typing import Any

from onnx_narrow.api.usage import Given, listed
from transforms.scheme.finetune_rule import FinetuneRule

_RULE = (
    *("algorithm", "num_iterations", "learning_rate", "early_stop", "fixed_seed", "selective_update"),
    *("following_relu", "full_range"),
)
"""Keywords that are keys of the table ``finetune`` of a scheme."""


def rule_of(given: Given) -> FinetuneRule:
    """Return what keywords say of tuning in the words of a scheme."""
    named = {name: given[name] for name in _RULE if name in given}
    return FinetuneRule(**named, target_op_type=tuple(listed(given.get("target_op_type", ()))))


def recorded(given: Given) -> dict[str, Any]:
    """Return the options that the metadata of the model record."""
    rule = rule_of(given)
    stepped = {name: given.get(name) for name in ("num_iterations", "learning_rate")}
    other = {"batch_size": given.get("batch_size", 1), "limit": given.get("limit")}
    other["output_index"] = given.get("output_index")
    values = {**vars(rule), **stepped, **other}
    return {name: values[name] for name in _RECORDED}


_RECORDED = (
    *("algorithm", "num_iterations", "learning_rate", "early_stop", "fixed_seed", "batch_size", "limit"),
    *("target_op_type", "selective_update", "following_relu", "output_index", "full_range"),
)
