"""Sessions of ONNX Runtime on a light model: large weights are handed over as they are, never serialized.

What the runtime makes of them for its kernels is then the only copy. It could be told to use the arrays
themselves (``SessionOptions.add_initializer``), but its optimizer transposes some weights in place and would
compute with the untransposed ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort

from transforms.model import detached_weights
from transforms.model.empty_tensors import unsafe_optimizers
from transforms.model.read_model import ModelError
from transforms.run.run_model import OpenModel, RunOptions, provider_name, session_settings

_NOWHERE = "memory"  # a location that is never read: the arrays take its place
_BUILT_IN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # domains that need no library
_SHARED_KINDS = "fiub"  # NumPy's own types, which the runtime takes as they are


class LightModel(OpenModel):
    """A model that is ready to run on weights that lie elsewhere, which it keeps alive."""

    def __init__(self, session: ort.InferenceSession, weights: Mapping[str, np.ndarray]) -> None:
        """Take a session and the arrays that it reads."""
        super().__init__(session)
        self._weights = weights


def open_light(
    light: onnx.ModelProto, weights: Mapping[str, np.ndarray], options: RunOptions | None = None
) -> LightModel:
    """Return a light model with its weights ready to run; ``light`` is changed by this.

    Our operators are registered where they may be needed, which takes a millisecond. Nodes run as early as
    their inputs allow, in the order of the model, so that what follows a large tensor lets go of it at once.
    Raises ValueError when the runtime refuses the model or has no such provider.
    """
    options = options or RunOptions()
    provider = provider_name(options.provider)
    known = all(imported.domain in _BUILT_IN for imported in light.opset_import)
    settings = session_settings(options, with_operators=not known)
    settings.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    _share(light, weights, settings)
    try:
        session = ort.InferenceSession(
            light.SerializeToString(),
            settings,
            providers=[provider],
            disabled_optimizers=unsafe_optimizers(light.graph),
        )
    except Exception as error:  # the runtime's exceptions share no narrower class
        raise ModelError(f"ONNX Runtime refuses the model: {' '.join(str(error).split())}") from error
    return LightModel(session, weights)


def _share(light: onnx.ModelProto, weights: Mapping[str, np.ndarray], settings: ort.SessionOptions) -> None:
    """Let the runtime find the arrays where they are; those that it can not read go into the model."""
    shared = {name: array for name, array in weights.items() if _is_readable(array)}
    detached_weights.fill(light, {name: array for name, array in weights.items() if name not in shared})
    for tensor in light.graph.initializer:
        if tensor.name in shared:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=_NOWHERE)
    values = [ort.OrtValue.ortvalue_from_numpy(array) for array in shared.values()]
    settings.add_external_initializers(list(shared), values)


def _is_readable(array: np.ndarray) -> bool:
    return array.dtype.kind in _SHARED_KINDS and array.flags.c_contiguous
