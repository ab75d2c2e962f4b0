"""Names for tensors and nodes: plain ones, and such as collide with what tools derive from them."""

from __future__ import annotations

import numpy as np

_ODD = (
    *("x_bf16", "x_float32", "x_raw", "gemm_out", "a/b.c:0", "with space", "größe", "日本", "{[*?]}", "%s"),
    *("'q'", "Constant_0", "shape_of_gemm", "1", "-", "bf16_scale", "x_bf16_narrow", "x_quantized"),
    "x_dequantized",
)


class Names:
    """Unique names of tensors over all graphs of a model; ``odd`` models use strange ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._taken, self._odd = rng, set[str](), rng.random() < 0.25

    def tensor(self, stem: str = "t") -> str:
        """Return a new name."""
        name = f"{stem}{len(self._taken)}"
        if self._odd and self._rng.random() < 0.4:
            kept = sorted(self._taken)
            roots = [*_ODD, *(f"{name}_{end}" for name in kept[-3:] for end in ("bf16", "float32", "raw"))]
            name = roots[self._rng.integers(len(roots))]
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def node(self, op: str, names: set[str]) -> str:
        """Return a name for a node of a graph whose nodes have ``names``, or none."""
        if self._rng.random() < (0.5 if self._odd else 0.15):
            return ""
        stem = op if not self._odd else _ODD[self._rng.integers(len(_ODD))]
        name = stem  # the same in every graph of a model: only within one it has to be unique
        while name in names:
            name = f"{stem}_{len(names)}" if name == stem else name + "_"
        names.add(name)
        return name
