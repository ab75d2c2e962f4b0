"""Devices by the names of the guides. Oracle: the table below, and modules that stand in for missing ones."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from transforms.runtime import devices
from transforms.runtime.session import provider_name


def test_the_processor_needs_nothing() -> None:
    assert devices.array_module("cpu") is np
    assert devices.provider("cpu") == "CPU" and provider_name("cpu") == "CPUExecutionProvider"


@pytest.mark.parametrize(
    ("device", "has", "found"),
    [
        ("cuda:0", ["CUDAExecutionProvider"], "CUDA"),
        ("hip:0", ["ROCMExecutionProvider"], "ROCM"),
        ("hip:0", ["ROCMExecutionProvider", "MIGraphXExecutionProvider"], "MIGraphX"),
    ],
)
def test_a_device_is_a_provider(
    device: str, has: list[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [*has, "CPUExecutionProvider"])
    assert devices.provider(device) == found
    assert provider_name(device) == f"{found}ExecutionProvider"


@pytest.mark.parametrize(
    ("device", "package"),
    [("cuda:0", "onnxruntime-gpu"), ("hip:0", "onnxruntime-migraphx or onnxruntime-rocm")],
)
def test_the_missing_package_is_named(device: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    for ask in (devices.provider, provider_name):
        with pytest.raises(
            ValueError, match=f"inference on '{device}' needs {package}; this ONNX Runtime has"
        ):
            ask(device)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ValueError, match=f"linear algebra on '{device}' needs CuPy"):
        devices.array_module(device)


@pytest.mark.parametrize(("device", "is_hip"), [("cuda:0", False), ("hip:0", True)])
def test_cupy_has_to_be_built_for_the_device(
    device: str, is_hip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _module(built_for_hip: bool) -> SimpleNamespace:
        runtime = SimpleNamespace(is_hip=built_for_hip)
        return SimpleNamespace(zeros=np.zeros, cuda=SimpleNamespace(runtime=runtime))

    monkeypatch.setitem(sys.modules, "cupy", _module(is_hip))
    assert devices.array_module(device) is sys.modules["cupy"]
    monkeypatch.setitem(sys.modules, "cupy", _module(not is_hip))
    with pytest.raises(ValueError, match="this CuPy is built for"):
        devices.array_module(device)


def test_unknown_devices_are_refused() -> None:
    for ask in (devices.provider, devices.array_module):
        with pytest.raises(
            ValueError, match="device 'npu' is unknown, did you mean 'cpu'\\? legal are cpu, cuda:0, hip:0"
        ):
            ask("npu")
