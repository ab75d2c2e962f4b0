"""The input of a quantized layer as it is stored between layers: as integers, if it is quantized to them.

Steps of a model that end and begin with integers run in the integer kernels of the whole model, and take a
quarter of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import walk
from transforms.graph.constants import load

_STORABLE = {np.dtype(kind) for kind in (np.int8, np.uint8, np.int16, np.uint16)}


@dataclass(frozen=True)
class LayerInput:
    """The ``name`` of a tensor q; the layer reads (q - zero_point) * scale.

    Without a ``scale`` it reads the tensor itself.
    """

    name: str
    scale: np.float32 | None = None
    zero_point: int = 0

    def read(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the input of the layer, equal in every bit to DequantizeLinear's output."""
        if self.scale is None:
            return stored
        centred = stored if self.zero_point == 0 else stored.astype(np.int32) - self.zero_point
        return centred.astype(np.float32) * self.scale


def layer_input(source: gs.Tensor) -> LayerInput:
    """Return how the input of a layer is stored: as integers of one scale, or unchanged."""
    node = walk.producer(source)
    if node is None or node.op != "DequantizeLinear":
        return LayerInput(str(source.name))
    stored, *parameters = node.inputs
    if not isinstance(stored, gs.Variable) or not all(isinstance(one, gs.Constant) for one in parameters):
        return LayerInput(str(source.name))
    scale, zero = load(parameters[0]), load(parameters[1]) if len(parameters) > 1 else None
    if zero is None or zero.dtype not in _STORABLE or {scale.size, zero.size} != {1}:
        return LayerInput(str(source.name))
    if scale.dtype != np.float32:
        return LayerInput(str(source.name))
    return LayerInput(str(stored.name), np.float32(scale.item()), int(zero.item()))
