"""The table ``[finetune]`` of a scheme."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ops.legal_names import refuse_unknown
from transforms.graph.dot_products import DOT_PRODUCTS
from transforms.scheme.scheme_values import FULL_RANGE, PADDED, SchemeTable

ALGORITHMS = ("auto", "gptq", "coordinate_descent", "adaquant", "adaround")
STEPPED = ("adaquant", "adaround")

_LEAST = {"num_iterations": 1, "learning_rate": 0, "fixed_seed": 0, "data_size": 0, "output_index": -1}
_RANGES = {key: (least, math.inf) for key, least in _LEAST.items()}


@dataclass(frozen=True)
class FinetuneRule(SchemeTable):
    """How a quantized model is tuned; docs/reference/scheme.md describes each key.

    The constructor raises ValueError naming key, value and the legal values.
    """

    algorithm: str = "auto"
    num_iterations: int = 1000
    learning_rate: float = 0.0
    early_stop: bool = False
    fixed_seed: int = 0
    data_size: int = 0
    target_op_type: tuple[str, ...] = ()
    selective_update: bool = False
    output_index: int = -1
    following_relu: bool = False
    full_range: str = PADDED

    def __post_init__(self) -> None:
        """Check every value, and that options of iterative algorithms are used with one of them."""
        self._check_types("finetune")
        refuse_unknown(self.algorithm, ALGORITHMS, "finetune algorithm")
        refuse_unknown(self.full_range, FULL_RANGE, "finetune full_range")
        for op in self.target_op_type:
            refuse_unknown(op, DOT_PRODUCTS, "finetune target_op_type")
        self._check_ranges("finetune", _RANGES)
        for name in ("num_iterations", "learning_rate", "early_stop"):
            default = getattr(FinetuneRule, name)
            if self.algorithm not in STEPPED and getattr(self, name) != default:
                raise ValueError(f"finetune {name} requires algorithm {' or '.join(STEPPED)}")
