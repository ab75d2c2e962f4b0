"""What the keywords of ``finetune`` say in the words of a scheme, and what metadata record of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from onnx_narrow.api.usage import fields_in
from onnx_narrow.options import keywords
from onnx_narrow.options.option import Given
from transforms.scheme.finetune_rule import FinetuneRule


def rule_of(given: Given) -> FinetuneRule:
    """Return what keywords say of tuning in the words of a scheme."""
    named = fields_in(FinetuneRule, given)
    named.pop("output_index", None)
    return FinetuneRule(**named)


def recorded(given: Given) -> dict[str, Any]:
    """Return the options that the metadata of the model record."""
    values = {one.name: getattr(rule_of(given), one.name) for one in fields(FinetuneRule)}
    values |= {name: given.get(name) for name in ("num_iterations", "learning_rate", "limit", "output_index")}
    values["batch_size"] = given.get("batch_size", 1)
    return {name: value for name, value in values.items() if name in keywords("finetune")}
