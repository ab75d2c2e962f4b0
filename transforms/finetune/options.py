"""Options of layer-by-layer tuning."""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.rounding import Options
from transforms.judge.constants import SPARED
from transforms.runtime.devices import CPU
from transforms.runtime.session import RunOptions
from transforms.scheme.scheme_values import PADDED


@dataclass(frozen=True)
class FinetuneOptions:
    """How a model is tuned.

    * ``algorithm``: ``auto`` or one of ops.rounding.ALGORITHMS, with the options ``solver``;
    * ``rescale``: whether scales and shared exponents are chosen again;
    * ``weights``: False tunes only biases;
    * ``op_types``: only layers of these operators;
    * ``held_out``: hold out every n-th sample (:func:`transforms.judge.sample_roles.is_held_out`);
    * ``most_rows``, ``least_rows``: sums use ``most_rows`` rows for each input of a layer, but at least
      ``least_rows``, sampled evenly with ``seed``; a layer with more inputs than ``least_rows`` uses no
      more;
    * ``memory_limit``: bytes of each model's tensors that stay in memory, the rest goes to files;
    * ``following_relu``: ignore errors that a Relu or Clip after a layer clips;
    * ``device``: where the sums are computed; ``run``: how the models run;
    * ``output_index``: the output that is measured, None for all;
    * ``selective``: keep a layer only if it also improves the model's outputs, which takes longer;
    * ``full_range``: one of FULL_RANGE, for ``auto``.
    """

    algorithm: str = "auto"
    rescale: bool = True
    weights: bool = True
    solver: Options = field(default_factory=Options)
    op_types: tuple[str, ...] = ()
    held_out: int = SPARED
    most_rows: int = 32
    least_rows: int = 4096
    memory_limit: int | None = None
    following_relu: bool = False
    device: str = CPU
    seed: int = 0
    run: RunOptions = field(default_factory=RunOptions)
    output_index: int | None = None
    selective: bool = False
    full_range: str = PADDED
