"""The error of the float outputs of a quantized model, as one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.finetune.output_error import Errors, OutputError
from transforms.graph import dtypes
from transforms.runtime.session import RunOptions

_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16)


def float_error(
    float_graph: gs.Graph, quantized_graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions | None = None
) -> float | None:
    """Return the mean over float outputs of squared error by power; None without such an output.

    An output after a final Softmax counts as it is before it. It may be infinite.
    """
    columns = [
        i for i, tensor in enumerate(float_graph.outputs) if any(dtypes.is_type(tensor, e) for e in _FLOATS)
    ]
    if not columns:
        return None
    found = OutputError(float_graph, feeds, None, run).each(quantized_graph)
    if not np.isfinite(found.powers[:, columns]).all():
        return None
    return Errors(found.errors[:, columns], found.powers[:, columns]).relative
