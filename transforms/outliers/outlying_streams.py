"""Residual streams with outlying channels, and the operands that have none after a rotation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transforms.graph import walk
from transforms.graph.residual_streams import Stream, StreamFinder
from transforms.graph.selection import Exclusion, resolve
from transforms.outliers.choose_moves import is_outlying
from transforms.outliers.operand import Operand
from transforms.outliers.sample_rows import Sample
from transforms.plan.quantization_plan import QuantizationPlan

_LARGE = 1 << 24  # bytes of weights: rotating them and preparing three more models takes over a second


def find_streams(plan: QuantizationPlan, *, exclude: Exclusion = None) -> list[Stream]:
    """Return the streams of a plan's graph that can be rotated.

    If its weights are large, only those that the plan itself puts on integers, which gain most.
    """
    graph = plan.graph
    streams = StreamFinder(graph, resolve(exclude, graph)).streams()
    if not streams or sum(tensor._values.nbytes for tensor in walk.constants(graph)) <= _LARGE:
        return streams
    rounded = {id(site.tensor) for site in plan.quantizations}
    return [stream for stream in streams if stream.tensors.keys() & rounded]


def outlying_streams(
    streams: Sequence[Stream], operands: Sequence[Operand], samples: Sequence[Sample]
) -> list[Stream]:
    """Return the streams that have outliers, or whose norms make operands that have some."""
    return [
        stream
        for stream in streams
        if any(
            is_outlying(np.concatenate([sample.rows[name] for sample in samples]))
            for name in (stream.name, *(one.tensor.name for one in operands if is_read(stream, one)))
        )
    ]


def is_read(stream: Stream, operand: Operand) -> bool:
    """Return whether an operand is of a stream, or what one of its norms makes."""
    readers = {id(node) for norm in stream.norms for node in norm.readers}
    return id(operand.tensor) in stream.tensors or any(id(node) in readers for node in operand.layers)
