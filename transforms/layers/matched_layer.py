"""A layer of a quantized model with its counterpart in the float model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.layers.linear_layer import LinearLayer
from transforms.layers.stored_constant import StoredConstant


@dataclass
class Bias:
    """The bias of a layer: ``stored`` is None if there is none yet, but can be.

    ``node`` adds it by its input ``index``; ``gain`` is its factor. ``is_extra``: it needs one more node, an
    Add after the MatMul that ``node`` is until then.
    """

    node: gs.Node
    index: int
    stored: StoredConstant | None
    gain: float = 1.0
    is_extra: bool = False


@dataclass
class MatchedLayer:
    """A layer of the quantized model with its float counterpart.

    ``source`` is the tensor that the quantized layer reads, ``target`` the name of its float output, the bias
    included if there is one. ``float_weight`` is [G, N, S, C], ``float_bias`` [G, N]. ``sharing_layers`` are
    the other layers that read the same weight.
    """

    name: str
    node: gs.Node
    layer: LinearLayer
    weight: StoredConstant
    bias: Bias | None
    source: gs.Tensor
    target: str
    float_weight: NDArray[np.float32]
    float_bias: Float64Array
    sharing_layers: list[MatchedLayer] = field(default_factory=list)

    @property
    def users(self) -> list[MatchedLayer]:
        """The layers that read the weight, in execution order."""
        return [self, *self.sharing_layers]


@dataclass(frozen=True)
class SkippedLayer:
    """A dot product that is not tuned, and why."""

    name: str
    op: str
    reason: str
