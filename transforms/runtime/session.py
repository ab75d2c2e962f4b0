"""Sessions of ONNX Runtime on models of any size: large weights of a graph are handed over, never serialized.

What the runtime makes of them for its kernels is then the only copy; files of weights it maps itself. It
could be told to use the arrays themselves (``SessionOptions.add_initializer``), but its optimizer transposes
some weights in place and would compute with the untransposed ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as KernelMissing

from ops.registration import register_custom_ops
from transforms.deploy import rounded_inputs, saturating_products
from transforms.files.paths import AnyPath
from transforms.files.runtime_message import NO_REASON, said_by_runtime
from transforms.graph.lazy_values import Weight
from transforms.model import detached_weights, graph_proto
from transforms.model.bounds import PROTOBUF_LIMIT, bytes_in_runs, refuse_bomb, reread, unsafe_optimizers
from transforms.model.model_error import ModelError
from transforms.model.quiet_settings import quiet_settings
from transforms.runtime.devices import DEVICES, MissingKernelError, ProviderError, start_on
from transforms.runtime.devices import provider as device_provider
from transforms.runtime.inputs import SizesError, session_input, two_sizes
from transforms.runtime.weight_arrays import share_weights, weight_arrays

_BLOCKS = "NchwcTransformer"
_NO_PREPACKING = "session.disable_prepacking"
_SPINNING = "session.intra_op.allow_spinning"
_FOLDING = "ConstantFolding"
_MOST_COPIED = 1 << 31
"""Bytes of weights above which the runtime uses them as they are in files: copies, in the order of kernels or
of another type, might not fit into memory."""

_MOST_COPIED_ONCE = 1 << 27
"""The same for sessions of few runs, in which copies do not pay."""

_NO_INTEGER_KERNELS = "session.disable_quant_qdq"
_MANY = 256  # inputs: below, binding each takes longer than looking for it
_BUILT_IN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # domains that need no library


@dataclass(frozen=True)
class RunOptions:
    """How a session runs: provider (``provider_name``), threads (0: the runtime chooses), optimization.

    ``simulate``: between quantizations to integers nodes compute in float32, as the model says, and not in
    kernels for integers; nor does the runtime round float32 weights of such layers by itself. ``prepack``: a
    copy of each weight is put in order for the kernels when the model is opened, which pays where there are
    dozens of runs. ``blocked``: convolutions may compute on blocks of channels; tensors between them that are
    looked at are brought into their own layout late, and live long. ``spin``: idle threads wait in a loop,
    which is fast where each has a core of its own. ``arena``: memory stays for the next tensor and run, and
    doubles whenever it does not do. ``guarded``: optimizers are left out that compute something else or end
    the process; users' own sessions have them. ``full_inputs``, ``exact_sums``: products neither round their
    inputs to 8 bits nor saturate at 16 bits (``rounded_inputs`` and ``saturating_products`` of
    :mod:`transforms.deploy`). ``profile``: where the runtime writes a profile of its runs, as the beginning
    of a path; complete with ``end_profiling``.
    """

    provider: str = "CPU"
    threads: int = 0
    optimize: bool = True
    simulate: bool = False
    prepack: bool = True
    blocked: bool = True
    spin: bool = True
    arena: bool = True
    guarded: bool = True
    full_inputs: bool = False
    exact_sums: bool = False
    profile: str = ""


class OpenModel:
    """A model that is ready to run; ``widened`` nodes of it compute in float32 between Casts."""

    def __init__(
        self,
        session: ort.InferenceSession,
        weights: Mapping[str, np.ndarray],
        widened: int = 0,
        *,
        sequences: bool = False,
    ) -> None:
        """Take a session whose inputs are all plain tensors, and the arrays that it reads.

        ValueError names the first input other than a plain tensor, or a sequence if ``sequences`` may be fed;
        ``inputs`` leaves those out.
        """
        self.session, self._weights = session, weights
        self.widened = widened
        arguments = session.get_inputs()
        if sequences:
            arguments = [one for one in arguments if not one.type.startswith("seq(")]
        self.inputs = tuple(session_input(argument) for argument in arguments)
        self.outputs = tuple(argument.name for argument in session.get_outputs())

    def run(
        self, feed: Mapping[str, np.ndarray], names: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the outputs (all, or those of the names) for a feed that ``check_feed`` accepts."""
        names = list(self.outputs if names is None else names)
        if not names:
            return {}  # of no names the runtime makes all outputs, and refuses a model without any
        is_many = len(feed) >= _MANY and not any(isinstance(value, list) for value in feed.values())
        try:
            made = self._run_bound(feed, names) if is_many else self.session.run(names, dict(feed))
        except Exception as error:  # the runtime's exceptions share no narrower class
            if reason := two_sizes({one.name: one.shape for one in self.session.get_inputs()}, feed):
                raise SizesError(reason) from error
            raise
        return dict(zip(names, made, strict=True))

    def _run_bound(self, feed: Mapping[str, np.ndarray], names: Sequence[str]) -> list[np.ndarray]:
        """Return the outputs for many arrays, of which a plain run looks for each in a list of all names."""
        binding = self.session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array if array.flags.c_contiguous else array.copy(order="C"))
        for name in names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        return list(binding.copy_outputs_to_cpu())


def open_session(source: AnyPath | gs.Graph, options: RunOptions | None = None) -> OpenModel:
    """Return a model as it stands, given as a file or as a graph, ready to run; a graph is not changed.

    Our operators are registered. Raises ValueError if the runtime refuses the model or has no such provider,
    MissingKernelError (a ValueError) without a kernel for a node, OSError if the file cannot be read.
    """
    return OpenModel(*start_session(source, options))


def open_light(
    light: onnx.ModelProto,
    weights: Mapping[str, Weight],
    options: RunOptions | None = None,
    *,
    in_order: bool = False,
    sequences: bool = False,
) -> OpenModel:
    """Return a light model with its weights ready to run; ``light`` is changed by this.

    ``in_order``: nodes run as early as their inputs allow, in the order of the model, so that one that looks
    at a large tensor lets go of it at once. Else what reads weights alone runs when it is needed.
    ``sequences``: whether lists of arrays may be fed, too.
    Raises as :func:`open_session` does.
    """
    with weight_arrays(weights, in_file=_bytes_in_runs(weights) > _MOST_COPIED) as arrays:
        session = _start_light(light, arrays, options or RunOptions(), in_order=in_order)
    return OpenModel(session, arrays, sequences=sequences)


def start_session(
    source: AnyPath | gs.Graph, options: RunOptions | None = None
) -> tuple[ort.InferenceSession, Mapping[str, np.ndarray]]:
    """Return a session, whatever its inputs are, and the arrays that have to live as long as it does."""
    options = options or RunOptions()
    if isinstance(source, gs.Graph):
        light, lazy = graph_proto.export_light(source)
        with weight_arrays(lazy, in_file=_bytes_in_runs(lazy) > _MOST_COPIED) as weights:
            return _start_light(light, weights, options), weights
    provider_name(options.provider)
    settings = session_settings(options)
    stored, unsafe, is_reread = refuse_bomb(Path(source))
    if is_reread:  # the runtime would keep all steps of all weights until the last is decoded
        light, lazy = reread(Path(source))
        with weight_arrays(lazy, in_file=True) as weights:
            return _start_light(light, weights, options), weights
    disabled = _without_copies(settings, stored, options) + (list(unsafe) if options.guarded else [])
    return _start(os.fspath(source), settings, options, disabled), {}


def why_not_on_cpu(light: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> str | None:
    """Return why the installed ONNX Runtime's CPU provider cannot load a light model, or None if it can.

    Our operators are registered. Large weights are declared as inputs, which changes nothing about which
    kernels a node needs.
    """
    return why_not_on("CPUExecutionProvider", detached_weights.as_inputs(light, dict(weights)))


def why_not_on(provider: str, model: onnx.ModelProto) -> str | None:
    """Return why a provider, or the CPU's, cannot load a model whose large weights are inputs, or None."""
    try:
        start_on(provider, model.SerializeToString(), session_settings(RunOptions(optimize=False)))
    except Exception as error:  # the runtime's exceptions share no narrower class
        reason = said_by_runtime(error)
        return f"{reason}; {_stored_types(model)}" if NO_REASON in reason else reason
    return None


def _stored_types(model: onnx.ModelProto) -> str:
    """Return the types of stored numbers and inputs, one of which a runtime may not know."""
    types = {one.data_type for one in model.graph.initializer}
    types |= {one.type.tensor_type.elem_type for one in model.graph.input}
    names = sorted(onnx.TensorProto.DataType.Name(one) for one in types)
    return f"types of the model: {', '.join(names)}"


def session_settings(options: RunOptions, *, with_operators: bool = True) -> ort.SessionOptions:
    """Return what a session is opened with; our operators are registered unless no node is one."""
    settings = quiet_settings()
    settings.intra_op_num_threads = options.threads
    if not options.optimize:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not options.spin:
        settings.add_session_config_entry(_SPINNING, "0")
    switches = {
        _NO_INTEGER_KERNELS: options.simulate,
        _NO_PREPACKING: not options.prepack,
        rounded_inputs.OPTION: options.full_inputs,
        saturating_products.OPTION: options.exact_sums,
    }
    for name in filter(switches.get, switches):
        settings.add_session_config_entry(name, "1")
    settings.enable_cpu_mem_arena = options.arena
    if options.profile:
        settings.enable_profiling, settings.profile_file_prefix = True, options.profile
    if with_operators:
        register_custom_ops(settings)
    return settings


def provider_name(short: str) -> str:
    """Return the runtime's name of the provider "cpu" or "CPUExecutionProvider"; ValueError without it.

    A device is the name of a provider, too: ``cuda:0``, ``hip:0``.
    """
    short = device_provider(short) if short in DEVICES else short
    available = ort.get_available_providers()
    for name in available:
        if short.lower() in (name.lower(), name.removesuffix("ExecutionProvider").lower()):
            return str(name)
    raise ValueError(f"provider '{short}' is not one of {', '.join(available)}")


def _start_light(
    light: onnx.ModelProto, weights: Mapping[str, np.ndarray], options: RunOptions, *, in_order: bool = False
) -> ort.InferenceSession:
    """Return a session on a light model, to which operators are registered if they may be needed."""
    known = all(imported.domain in _BUILT_IN for imported in light.opset_import)
    settings = session_settings(options, with_operators=not known)
    if in_order:
        settings.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    share_weights(light, weights, settings)
    disabled = _without_copies(settings, _bytes_in_runs(weights), options)
    size = light.ByteSize()
    if size > PROTOBUF_LIMIT:
        raise ValueError(
            f"the model has {size:,} bytes beside its shared weights, too many to be run from memory: "
            f"the limit is {PROTOBUF_LIMIT:,}"
        )
    if options.guarded:
        disabled += unsafe_optimizers(light.graph)
    return _start(light.SerializeToString(), settings, options, disabled)


def _start(
    model: str | bytes, settings: ort.SessionOptions, options: RunOptions, disabled: Sequence[str] = ()
) -> ort.InferenceSession:
    provider = provider_name(options.provider)
    disabled = [*disabled, *(() if options.blocked else (_BLOCKS,))]
    try:
        return start_on(provider, model, settings, disabled)
    except (MissingKernelError, ProviderError):
        raise
    except KernelMissing as error:
        raise MissingKernelError(f"{provider} cannot run the model: {said_by_runtime(error)}") from error
    except Exception as error:  # the runtime's exceptions share no narrower class
        raise ModelError(f"ONNX Runtime refuses the model: {said_by_runtime(error)}") from error


def _bytes_in_runs(weights: Mapping[str, Weight]) -> int:
    sizes = ((one.dtype, one.nbytes // one.dtype.itemsize) for one in weights.values())
    return sum(bytes_in_runs(dtype, size) for dtype, size in sizes)


def _without_copies(settings: ort.SessionOptions, stored: int, options: RunOptions) -> list[str]:
    """Let the runtime use so many bytes of weights as they are in files, if they are many.

    What it makes of one of them for a node is then given back after that. Returns the optimizers that have
    to be disabled for this.
    """
    if stored <= (_MOST_COPIED if options.prepack else _MOST_COPIED_ONCE):
        return []
    settings.enable_cpu_mem_arena = False
    if options.prepack:  # else it is said already
        settings.add_session_config_entry(_NO_PREPACKING, "1")
    return [_FOLDING]
