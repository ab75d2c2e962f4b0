"""Sessions on one provider: a device computes float32 in float32, and nothing runs elsewhere unsaid."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import onnxruntime as ort

from transforms.model.quiet_settings import SILENT

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_WARNINGS = 2  # what the runtime logs by default
_SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType({_CUDA: {"use_tf32": "0"}})
"""By default tensor cores round factors to TF32, with 11 bits: too few for a model that others are held
against."""


class ProviderError(ValueError):
    """The installed ONNX Runtime has a provider that this machine cannot run."""


def start_on(
    provider: str, model: str | bytes, settings: ort.SessionOptions, disabled: Sequence[str] = ()
) -> ort.InferenceSession:
    """Return a session on a provider by the runtime's name; the processor runs nodes without kernels there.

    Without this the runtime runs all nodes on the processor if the provider's libraries, or its device, are
    missing. Raises ProviderError then, and what the runtime raises.
    """
    if provider == _CPU:
        return ort.InferenceSession(model, settings, providers=[provider], disabled_optimizers=disabled)
    missing = _missing_libraries() if provider == _CUDA else ""
    with _silent_log():  # it says in several lines what is raised here
        session = ort.InferenceSession(
            model,
            settings,
            providers=[(provider, dict(_SETTINGS.get(provider, {})))],
            disabled_optimizers=disabled,
            enable_fallback=0,
        )
    if provider not in session.get_providers():
        reason = missing or "its libraries or its device are missing"
        raise ProviderError(f"provider '{provider}' does not run on this machine: {reason}")
    return session


@cache
def _missing_libraries() -> str:
    """Load the libraries of CUDA that Python packages may hold; return which is missing first, or ""."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    before = "Failed to load "
    failed = (line.partition(": ")[0] for line in said.getvalue().splitlines() if line.startswith(before))
    return "".join(f"library {line.removeprefix(before)} cannot be loaded" for line in list(failed)[:1])


@contextlib.contextmanager
def _silent_log() -> Iterator[None]:
    ort.set_default_logger_severity(SILENT)
    try:
        yield
    finally:
        ort.set_default_logger_severity(_WARNINGS)
