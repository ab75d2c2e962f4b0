"""The keywords of ``finetune`` as a rule of a scheme, and as recorded in the metadata of the model."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from onnx_narrow import options
from onnx_narrow.api.usage import fields_in
from onnx_narrow.options.option import Keywords
from transforms.scheme.finetune_rule import FinetuneRule


def rule_of(keywords: Keywords) -> FinetuneRule:
    """Return the tuning rule of a scheme that the keywords describe."""
    fields_of_rule = fields_in(FinetuneRule, keywords)
    fields_of_rule.pop("output_index", None)
    return FinetuneRule(**fields_of_rule)


def recorded(keywords: Keywords) -> dict[str, Any]:
    """Return the options that the metadata of the model record."""
    values = {one.name: getattr(rule_of(keywords), one.name) for one in fields(FinetuneRule)}
    values |= {
        name: keywords.get(name) for name in ("num_iterations", "learning_rate", "limit", "output_index")
    }
    values["batch_size"] = keywords.get("batch_size", 1)
    return {name: value for name, value in values.items() if name in options.keywords("finetune")}
