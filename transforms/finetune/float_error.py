"""The error of the float outputs of a quantized model, as one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.finetune.output_error import Errors, OutputError
from transforms.graph import dtypes, walk
from transforms.runtime.session import RunOptions

_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16)


def float_error(
    float_graph: gs.Graph, quantized_graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions | None = None
) -> float | None:
    """Return the mean over float outputs of squared error by power; None without such an output.

    An output after a final Softmax counts as it is before it, one whose rows numbers choose as what is before
    that. It may be infinite.
    """
    if not any(dtypes.element_type(tensor) in _FLOATS for tensor in float_graph.outputs):
        return None
    judge = OutputError(float_graph, feeds, None, run, known=quantized_graph)
    made = walk.tensors(float_graph)
    columns = [i for i, name in enumerate(judge.names) if dtypes.element_type(made[name]) in _FLOATS]
    found = judge.each(quantized_graph)
    if not np.isfinite(found.powers[:, columns]).all():
        return None
    return Errors(found.errors[:, columns], found.powers[:, columns]).relative
