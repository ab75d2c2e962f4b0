"""Where inference and linear algebra run: on the processor, or on a CUDA or HIP device with all it takes."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType

import numpy as np
import onnxruntime as ort

CPU, CUDA, HIP = "cpu", "cuda:0", "hip:0"
DEVICES = (CPU, CUDA, HIP)

_INFO = Path("/proc/cpuinfo")
_X86 = ("x86_64", "amd64", "i386", "i686")


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
    if device not in DEVICES:
        raise ValueError(f"device '{device}' is unknown, legal are {', '.join(DEVICES)}")


def has_vnni(info: Path = _INFO) -> bool | None:
    """Return whether an x86 processor multiplies uint8 by int8 into 32-bit sums at once; None if unknown.

    Without these instructions ONNX Runtime adds two products in 16 bits, which saturate. Other processors
    have no such sums: True.
    """
    if platform.machine().lower() not in _X86:
        return True
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), None)
    return None if flags is None else any("vnni" in flag for flag in flags)
