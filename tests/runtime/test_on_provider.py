"""Sessions on providers. Oracles: what the session is asked for, and the words of the error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime as ort
import pytest

from tests.helpers import tunable
from tests.helpers.conversion import convert
from transforms.run.run_model import open_model
from transforms.runtime import devices
from transforms.runtime.session import MissingKernelError, RunOptions, open_session, why_not_on
from transforms.scheme.targets import TARGETS

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
NOBODY = (
    "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: transformer_memcpy.cc:253 "
    "!node_provider_type.empty() was false. Provider type for Clip node with name 'relu' is not set.\n"
)
WORDS = f"{CUDA} has no kernel for Clip node with name 'relu', nor has the CPU"


class Asked:
    """Stands in for the runtime's sessions: notes what it is asked for; ``used`` are the providers it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, used: list[str], printed: str = "") -> None:
        self.options: dict[str, Any] = {}
        self.used, self.error = used, ""
        devices._missing_libraries.cache_clear()
        monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
        monkeypatch.setattr(ort, "preload_dlls", lambda: print(printed), raising=False)
        monkeypatch.setattr(ort, "set_default_logger_severity", lambda _: None)
        monkeypatch.setattr(ort, "InferenceSession", self._session)

    def _session(self, model: bytes, settings: ort.SessionOptions, **options: Any) -> SimpleNamespace:
        self.options = options
        if self.error:
            raise RuntimeError(self.error)
        nothing: list[str] = []
        return SimpleNamespace(
            get_providers=lambda: self.used, get_inputs=lambda: nothing, get_outputs=lambda: nothing
        )


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    yield
    devices._missing_libraries.cache_clear()


def _open(provider: str, tmp_path: Any) -> None:
    onnx.save(tunable.conv_net(), tmp_path / "m.onnx")
    open_session(tmp_path / "m.onnx", RunOptions(provider))


def test_float32_stays_float32_on_cuda(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, [CUDA, CPU])
    _open("cuda:0", tmp_path)
    assert asked.options["providers"] == [CUDA]
    assert asked.options["provider_options"] == [{"use_tf32": "0"}]
    assert asked.options["enable_fallback"] == 0


def test_the_processor_takes_no_options(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, [CPU])
    _open("cpu", tmp_path)
    assert set(asked.options) == {"providers", "disabled_optimizers"}


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", "its libraries or its device are missing"),
        (
            "Failed to load libcublasLt.so.13: cannot open\nFailed to load libx.so: libx.so",
            "library libcublasLt.so.13 cannot be loaded",
        ),
    ],
)
def test_a_device_that_is_missing_is_no_silent_processor(
    printed: str, reason: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """ONNX Runtime returns a session on the processor if the provider's library cannot be loaded."""
    asked = Asked(monkeypatch, [CPU], printed)
    words = f"provider '{CUDA}' does not run on this machine: {reason}"
    with pytest.raises(ValueError, match=f"^{words}$"):
        _open("cuda:0", tmp_path)
    assert why_not_on(CUDA, tunable.conv_net()) == words
    assert capsys.readouterr().out == "" and asked.options["providers"] == [CUDA]


def test_what_cuda_says_without_a_device(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "cuda_call.cc:154 [with ERRTYPE = cudaError; bool THRW = true] CUDA failure 100: no CUDA-capable "
    Asked(monkeypatch, [CUDA, CPU]).error = f"{said}device is detected ; GPU=-1 ; hostname=vm ; line=355"
    with pytest.raises(ValueError, match=r"on this machine: no CUDA-capable device is detected$"):
        _open("cuda:0", tmp_path)


def test_what_cuda_says_of_a_node_without_any_kernel(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch, [CUDA, CPU]).error = NOBODY
    with pytest.raises(MissingKernelError, match=f"^{WORDS}$"):
        _open("cuda:0", tmp_path)
    assert why_not_on(CUDA, tunable.conv_net()) == WORDS


def test_bfloat16_nodes_without_a_kernel_on_cuda_are_widened(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the same model without the refusal, opened on the processor, which widens it for its reason."""
    convert(tunable.conv_net(), tmp_path, "--format", "bf16")
    wanted = open_model(tmp_path / "out.onnx").widened
    asked = Asked(monkeypatch, [CUDA, CPU])
    sessions = iter([NOBODY, ""])

    def _session(*given: Any, **options: Any) -> SimpleNamespace:
        asked.error = next(sessions)
        return asked._session(*given, **options)

    monkeypatch.setattr(ort, "InferenceSession", _session)
    assert open_model(tmp_path / "out.onnx", RunOptions("cuda:0")).widened == wanted > 0


def test_operators_of_cuda_are_known_to_onnx() -> None:
    assert all(onnx.defs.has(name) for name in TARGETS["ort-cuda"].bfloat16_kernels)
