"""Where inference and linear algebra run: on the processor, or on a CUDA or HIP device with all it takes.

A device computes float32 in float32, and nothing runs elsewhere unsaid.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType, ModuleType

import numpy as np
import onnxruntime as ort

from ops.legal_names import refuse_unknown
from transforms.model.model_error import ModelError
from transforms.model.quiet_settings import SILENT

_WARNING = 2  # the severity that the runtime begins with

CPU, CUDA, HIP = "cpu", "cuda:0", "hip:0"
DEVICES = (CPU, CUDA, HIP)


@dataclass(frozen=True)
class _Needs:
    """What a device takes: providers of ONNX Runtime and the packages that have them, and CuPy's build."""

    providers: tuple[str, ...]
    runtime: str
    cupy: str
    kind: str
    is_hip: bool


_NEEDS: Mapping[str, _Needs] = MappingProxyType(
    {
        CUDA: _Needs(("CUDAExecutionProvider",), "onnxruntime-gpu", "CuPy", "a CUDA device", False),
        HIP: _Needs(
            ("MIGraphXExecutionProvider", "ROCMExecutionProvider"),
            "onnxruntime-migraphx or onnxruntime-rocm",
            "CuPy built for ROCm",
            "a HIP device",
            True,
        ),
    }
)


def array_module(device: str) -> ModuleType:
    """Return the module that computes with arrays on a device: NumPy, or CuPy.

    Raises ValueError for an unknown device, and where CuPy, its build for the device, or the device is
    missing.
    """
    _check(device)
    if device == CPU:
        return np
    needs = _NEEDS[device]
    words = f"linear algebra on '{device}' needs {needs.cupy} and {needs.kind}"
    try:
        cupy = importlib.import_module("cupy")
        cupy.zeros(1)
    except Exception as error:  # no CuPy, no driver, no device: each with an exception of its own
        raise ValueError(f"{words}: {error}") from error
    if bool(cupy.cuda.runtime.is_hip) != needs.is_hip:
        raise ValueError(f"{words}: this CuPy is built for {'CUDA' if needs.is_hip else 'ROCm'}")
    return cupy


def provider(device: str) -> str:
    """Return the provider of ONNX Runtime for a device, as RunOptions take it; ValueError without it."""
    _check(device)
    if device == CPU:
        return "CPU"
    needs, available = _NEEDS[device], ort.get_available_providers()
    found = next((name for name in needs.providers if name in available), None)
    if found is None:
        here = ", ".join(available)
        raise ValueError(f"inference on '{device}' needs {needs.runtime}; this ONNX Runtime has {here}")
    return found.removesuffix("ExecutionProvider")


def _check(device: str) -> None:
    refuse_unknown(device, DEVICES, "device")


_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType({_CUDA: {"use_tf32": "0"}})
"""By default CUDA's products round float32 to TF32, which has 11 bits: too few to hold models against."""

_NOBODY = re.compile(r"Provider type for (\S+ node with name '.*') is not set")
"""What the runtime says of a node for which a device has no kernel, if the processor has none either."""

_BROKEN = re.compile(r"CUDA failure \d+: ([^;]+?) *;")
"""What it says if CUDA itself fails, as it does without a device."""


class ProviderError(ValueError):
    """The installed ONNX Runtime has a provider that does not run on this machine."""


class MissingKernelError(ModelError):
    """The provider has no kernel for a node."""


def start_on(
    provider: str, model: str | bytes, settings: ort.SessionOptions, disabled: Sequence[str] = ()
) -> ort.InferenceSession:
    """Return a session on a provider by the runtime's name; nodes without kernels there run on the processor.

    On a device float32 is computed in float32, and the runtime's log is silent from then on. Raises
    ProviderError if the provider's libraries or its device are missing (the runtime by itself would run all
    on the processor), MissingKernelError for what it says of that in other words, and what it raises.
    """
    options: dict[str, object] = {"providers": [provider], "disabled_optimizers": disabled}
    missing = ""
    if provider != _CPU:
        missing = _missing_libraries() if provider == _CUDA else ""
        ort.set_default_logger_severity(SILENT)  # providers' messages that belong to no session
        options |= {"provider_options": [dict(_SETTINGS.get(provider, {}))], "enable_fallback": 0}
    try:
        with _quiet_kernels(settings, provider):
            session = ort.InferenceSession(model, settings, **options)
    except Exception as error:  # the runtime's exceptions share no narrower class
        if match := _NOBODY.search(str(error)):
            raise MissingKernelError(f"{provider} has no kernel for {match[1]}, nor has the CPU") from error
        if match := _BROKEN.search(str(error)):
            raise ProviderError(f"provider '{provider}' does not run on this machine: {match[1]}") from error
        raise
    if provider not in session.get_providers():
        reason = missing or "its libraries or its device are missing"
        raise ProviderError(f"provider '{provider}' does not run on this machine: {reason}")
    return session


@contextlib.contextmanager
def _quiet_kernels(settings: ort.SessionOptions, provider: str) -> Iterator[None]:
    """Keep the kernels of a session without optimization from logging, past its settings, that they are slow.

    QMoE does where its scales are still Casts.
    """
    is_plain = settings.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not is_plain or provider != _CPU:
        yield
        return
    ort.set_default_logger_severity(SILENT)
    try:
        yield
    finally:
        ort.set_default_logger_severity(_WARNING)


@cache
def _missing_libraries() -> str:
    """Load the libraries of CUDA that Python packages may hold; return what is missing first, or ""."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    before = "Failed to load "
    failed = (line.partition(": ")[0] for line in said.getvalue().splitlines() if line.startswith(before))
    return "".join(f"library {line.removeprefix(before)} cannot be loaded" for line in list(failed)[:1])
