"""Running a model on arrays: sessions that know our operators, bfloat16 anywhere, checks of what is fed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as KernelMissing

import ops
from transforms import model_io
from transforms.files.array_header import ArrayHeader
from transforms.model import graph_proto
from transforms.model.bounds import refuse_bomb
from transforms.model.read_model import ModelError
from transforms.widen_bf16 import widen_bf16

log = logging.getLogger(__name__)

_SILENT = 4
_NO_PREPACKING = "session.disable_prepacking"
_NO_INTEGER_KERNELS = "session.disable_quant_qdq"
_BFLOAT16 = "tensor(bfloat16)"
_NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.str_,
} | {f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class ModelInput:
    """An input of a model: its name, element type, and shape with None for each dimension that is free."""

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class RunOptions:
    """How a session runs: provider (``provider_name``), threads (0: the runtime chooses), optimization.

    ``simulate``: between quantizations to integers nodes compute in float32, as the model says, and not in
    kernels for integers. The runtime then leaves weights alone, too, which it would otherwise quantize itself
    where they are float32 and the rest of a layer is integers: with 16-bit inputs to something useless.
    ``prepack``: a copy of each weight is put in order for the kernels when the model is opened, which pays
    where there are dozens of runs.
    """

    provider: str = "CPU"
    threads: int = 0
    optimize: bool = True
    simulate: bool = False
    prepack: bool = True


class OpenModel:
    """A model that is ready to run; ``widened`` nodes of it compute in float32 between Casts."""

    def __init__(self, session: ort.InferenceSession, widened: int = 0) -> None:
        """Take a session whose inputs are all plain tensors; ValueError names the first that is not."""
        self.session = session
        self.widened = widened
        self.inputs = tuple(_describe(argument) for argument in session.get_inputs())
        self.outputs = tuple(argument.name for argument in session.get_outputs())

    def run(
        self, feed: Mapping[str, np.ndarray], names: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the outputs (all, or those of the names) for a feed that ``check_feed`` accepts."""
        names = list(self.outputs if names is None else names)
        if not names:
            return {}  # of no names the runtime makes all outputs, and refuses a model without any
        return dict(zip(names, self.session.run(names, dict(feed)), strict=True))


def open_model(source: str | Path | gs.Graph, options: RunOptions | None = None) -> OpenModel:
    """Return a model, given as a file or as a graph, ready to run; a graph may be changed by this.

    Our operators are registered. A model with bfloat16 nodes for which the provider has no kernels is run
    with these nodes between Casts in memory (:func:`transforms.widen_bf16.widen_bf16`); bfloat16 inputs
    and outputs are then float32. Raises ValueError when the runtime refuses the model or has no such
    provider, OSError when the file can not be read.
    """
    options = options or RunOptions()
    provider = provider_name(options.provider)
    if not isinstance(source, gs.Graph):
        source = Path(source)
        refuse_bomb(source)
    try:
        session = _session(source, options, provider)
        arguments = (*session.get_inputs(), *session.get_outputs())
        if all(argument.type != _BFLOAT16 for argument in arguments):
            return OpenModel(session)
    except KernelMissing as error:
        log.debug("%s", error)
    graph = source if isinstance(source, gs.Graph) else model_io.load(source)
    widened = widen_bf16(graph)
    try:
        return OpenModel(_session(graph, options, provider), widened)
    except KernelMissing as error:
        raise ModelError(f"{provider} can not run the model: {error}") from error


def session_settings(options: RunOptions, *, with_operators: bool = True) -> ort.SessionOptions:
    """Return what a session is opened with; our operators are registered unless no node is one."""
    settings = ort.SessionOptions()
    settings.log_severity_level = _SILENT
    settings.intra_op_num_threads = options.threads
    if not options.optimize:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if options.simulate:
        settings.add_session_config_entry(_NO_INTEGER_KERNELS, "1")
    if not options.prepack:
        settings.add_session_config_entry(_NO_PREPACKING, "1")
    if with_operators:
        ops.register_custom_ops(settings)
    return settings


def provider_name(short: str) -> str:
    """Return the runtime's name of the provider "cpu" or "CPUExecutionProvider"; ValueError without it."""
    available = ort.get_available_providers()
    for name in available:
        if short.lower() in (name.lower(), name.removesuffix("ExecutionProvider").lower()):
            return str(name)
    raise ValueError(f"provider '{short}' is not one of {', '.join(available)}")


def check_feed(
    inputs: Sequence[ModelInput], feed: Mapping[str, np.ndarray | ArrayHeader], sample: str
) -> None:
    """Raise ValueError, naming sample and input, when a feed does not fit: names, types, ranks, sizes."""
    wanted = {one.name for one in inputs}
    if unknown := sorted(feed.keys() - wanted):
        raise ValueError(
            f"sample '{sample}': '{unknown[0]}' is no input of the model, which has {_list(wanted)}"
        )
    for one in inputs:
        if one.name not in feed:
            raise ValueError(f"sample '{sample}': no array for input '{one.name}', only for {_list(feed)}")
        array, place = feed[one.name], f"sample '{sample}', input '{one.name}'"
        if not _same_type(array.dtype, one.dtype):
            raise ValueError(f"{place}: type {array.dtype} instead of {one.dtype}")
        if not _fits(array.shape, one.shape):
            raise ValueError(f"{place}: shape {_dims(array.shape)} instead of {_dims(one.shape)}")


def _session(source: Path | gs.Graph, options: RunOptions, provider: str) -> ort.InferenceSession:
    settings = session_settings(options)
    model = str(source) if isinstance(source, Path) else _serialize(source)
    try:
        return ort.InferenceSession(model, settings, providers=[provider])
    except KernelMissing:
        raise
    except Exception as error:  # the runtime's exceptions share no narrower class
        raise ModelError(f"ONNX Runtime refuses the model: {error}") from error


def _serialize(graph: gs.Graph) -> bytes:
    model = graph_proto.export_model(graph)
    if model.ByteSize() > model_io.PROTOBUF_LIMIT:
        raise ValueError(f"the model of {model.ByteSize():,} bytes is too large to be rewritten in memory")
    return model.SerializeToString()


def _describe(argument: ort.NodeArg) -> ModelInput:
    if argument.type not in _NUMPY_TYPES:
        raise ValueError(f"input '{argument.name}' of type {argument.type} can not be fed from arrays")
    shape = tuple(size if isinstance(size, int) else None for size in argument.shape)
    return ModelInput(argument.name, np.dtype(_NUMPY_TYPES[argument.type]), shape)


def _same_type(given: np.dtype, wanted: np.dtype) -> bool:
    """Byte order aside; strings of any length are of one type."""
    return given.kind == wanted.kind and (given.kind == "U" or given.itemsize == wanted.itemsize)


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    same = (size in (given, None) for given, size in zip(shape, wanted, strict=False))
    return len(shape) == len(wanted) and all(same)


def _dims(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _list(names: object) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"  # type: ignore[call-overload]
