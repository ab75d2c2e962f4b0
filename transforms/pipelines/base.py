"""What the models of a job are built from."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record
from transforms.judge.judge import Judge
from transforms.plan.scheme_targets import SchemeTargets
from transforms.plan.weight_cache import WeightMemory


@dataclass(frozen=True)
class Prepared:
    """The float model before outputs decide anything, what preparing changed and noted, and its judge."""

    graph: gs.Graph
    record: Record
    judge: Judge


@dataclass
class Base:
    """The float model in the form that is quantized, and what is known of it.

    Attributes
    ----------
    graph : Graph or None
        The float model, prepared, folded and fused; None where nothing is compared with it.
    prepared : Record or None
        What preparing changed and noted, after the row ``build``.
    undecided : Prepared or None
        The model to decide about anew, after the row ``measure`` of a job that needs it.
    targets : SchemeTargets or None
        The nodes and tensors that the scheme names, after the row ``name_targets``.
    names : set of str
        Names of nodes that a scheme can name, after the row ``measure``: those of the model, before channels
        are moved.
    memory : WeightMemory or None
        Weights on the grids of candidates, which the graph that is built shares.
    """

    graph: gs.Graph | None = None
    prepared: Record | None = None
    undecided: Prepared | None = None
    targets: SchemeTargets | None = None
    names: Set[str] = frozenset()
    memory: WeightMemory | None = None
