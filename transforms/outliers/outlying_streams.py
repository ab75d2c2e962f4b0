"""Residual streams with outlying channels, and the operands that have none after a rotation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transforms.graph.residual_streams import Stream
from transforms.outliers.choose_moves import is_outlying
from transforms.outliers.operand import Operand
from transforms.outliers.sample_rows import Sample


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
