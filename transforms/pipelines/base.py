"""The prepared float model of a job, from which its quantized models are built."""

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
    """The float model before outputs decide anything, the changes and notes of its preparation, its judge."""

    graph: gs.Graph
    record: Record
    judge: Judge


@dataclass
class Base:
    """The float model in the form that is quantized, and facts about it.

    Attributes
    ----------
    graph : Graph or None
        The float model, prepared, folded and fused; None if nothing is compared with it.
    prepared : Record or None
        The changes and notes of the preparation, after the row ``build``.
    undecided : Prepared or None
        The model before decisions, after the row ``measure`` of a job that decides twice.
    targets : SchemeTargets or None
        The nodes and tensors that the scheme names, after the row ``name_targets``.
    names : set of str
        Names of nodes that a scheme can name, after the row ``measure``: those before channels are moved.
    memory : WeightMemory or None
        Cache of quantized weights, shared by candidates and the final model.
    """

    graph: gs.Graph | None = None
    prepared: Record | None = None
    undecided: Prepared | None = None
    targets: SchemeTargets | None = None
    names: Set[str] = frozenset()
    memory: WeightMemory | None = None
