"""Where inference and linear algebra run: on the processor, or on a CUDA device with all it takes."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import onnxruntime as ort

CPU, CUDA = "cpu", "cuda:0"
DEVICES = (CPU, CUDA)


def array_module(device: str) -> ModuleType:
    """Return the module that computes with arrays on a device: NumPy, or CuPy.

    Raises ValueError for an unknown device, and where CuPy or its device is missing.
    """
    _check(device)
    if device == CPU:
        return np
    try:
        cupy = importlib.import_module("cupy")
        cupy.zeros(1)
    except Exception as error:  # no CuPy, no driver, no device: each with an exception of its own
        raise ValueError(f"linear algebra on '{device}' needs CuPy and a CUDA device: {error}") from error
    return cupy


def provider(device: str) -> str:
    """Return the provider of ONNX Runtime for a device, as RunOptions take it; ValueError without it."""
    _check(device)
    if device == CPU:
        return "CPU"
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        available = ", ".join(ort.get_available_providers())
        raise ValueError(f"inference on '{device}' needs onnxruntime-gpu; this ONNX Runtime has {available}")
    return "CUDA"


def _check(device: str) -> None:
    if device not in DEVICES:
        raise ValueError(f"device '{device}' is unknown, legal are {', '.join(DEVICES)}")
