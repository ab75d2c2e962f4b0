"""Options of a job: how it runs, the target of its outputs, and the form in which its model is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transforms.conversion.rows import Row
from transforms.plan.tensor_grids import FixedGrids
from transforms.runtime.session import RunOptions
from transforms.scheme.finetune_rule import FinetuneRule
from transforms.search.target import Target

if TYPE_CHECKING:
    from transforms.finetune.finished_layers import FinishedLayers

FORMS = ("matmul_nbits", "accuracy_level", "embeddings", "kv_cache", "storage")
"""Options for the stored form of parts of a model; metadata record them beside the scheme."""


@dataclass(frozen=True)
class Options:
    """Options of a job in addition to its scheme and samples.

    Attributes
    ----------
    run : RunOptions
        Options of sessions.
    goal : Target or None
        The target that the outputs have to meet on held-out samples, with layers in ``fallback``.
    allow_miss : bool
        Whether the best model is taken if none meets the target.
    allow_large : bool
        Whether a model that meets the target may be almost as large as the float model.
    fallback : str
        One of :data:`transforms.search.target.FALLBACKS`.
    effort : str
        The budget of runs for choices, one of :data:`transforms.judge.constants.EFFORTS`.
    times : bool
        Whether the model is timed against the float model, and layers are placed by their time.
    matmul_nbits, accuracy_level, embeddings, stores_tied, kv_cache
        Parts that are written as operators of ONNX Runtime.
    storage : str
        How weights of block formats are stored: "plain" or "packed".
    functions : bool
        Whether custom operators get functions, so that a model needs no library.
    external_data : bool
        Whether large weights are saved in a file beside the model.
    random_data : int
        The number of random samples used in place of real ones; they decide nothing.
    finished : FinishedLayers, optional
        The folder in which fitted and tuned layers are kept until the model is written.
    fixed : FixedGrids
        Grids of tensors that are given instead of measured.
    tuning : FinetuneRule, optional
        How the step ``tune`` tunes the weights.
    moves : sequence of functions, optional
        The moves that the step ``decide`` tries, instead of its ``MOVES``.
    compares, may_compare : bool
        Whether outputs are compared in any case, and whether they may be after changes.
    keeps_float : bool
        Whether the prepared float model is kept for later steps.
    recorded : mapping of str to object
        The options to record in the metadata of the model.
    recipe : sequence of Row
        The rows of the work, after :func:`transforms.pipelines.steps.run` has begun.
    """

    run: RunOptions = field(default_factory=RunOptions)
    goal: Target | None = None
    allow_miss: bool = False
    allow_large: bool = False
    fallback: str = "float32"
    effort: str = "normal"
    times: bool = True
    matmul_nbits: bool = False
    accuracy_level: int | None = None
    embeddings: str = ""
    stores_tied: bool = True
    kv_cache: str = ""
    storage: str = "plain"
    functions: bool = True
    external_data: bool = False
    random_data: int = 0
    finished: FinishedLayers | None = None
    fixed: FixedGrids = field(default_factory=FixedGrids)
    tuning: FinetuneRule | None = None
    moves: Sequence[Callable[[Any], None]] | None = None
    compares: bool = False
    may_compare: bool = True
    keeps_float: bool = False
    recorded: Mapping[str, object] = field(default_factory=dict)
    recipe: Sequence[Row[Any]] = ()

    @property
    def changes_last(self) -> bool:
        """Whether rewrites after all choices change numbers."""
        return bool(self.matmul_nbits or self.embeddings or self.kv_cache)
