"""Sessions on one provider: a device computes float32 in float32, and nothing runs elsewhere unsaid."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

import onnxruntime as ort

from transforms.model.model_error import ModelError
from transforms.model.quiet_settings import SILENT

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
        session = ort.InferenceSession(model, settings, **options)
    except Exception as error:  # the runtime's exceptions share no narrower class
        if found := _NOBODY.search(str(error)):
            raise MissingKernelError(f"{provider} has no kernel for {found[1]}, nor has the CPU") from error
        if found := _BROKEN.search(str(error)):
            raise ProviderError(f"provider '{provider}' does not run on this machine: {found[1]}") from error
        raise
    if provider not in session.get_providers():
        reason = missing or "its libraries or its device are missing"
        raise ProviderError(f"provider '{provider}' does not run on this machine: {reason}")
    return session


@cache
def _missing_libraries() -> str:
    """Load the libraries of CUDA that Python packages may hold; return what is missing first, or ""."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    before = "Failed to load "
    failed = (line.partition(": ")[0] for line in said.getvalue().splitlines() if line.startswith(before))
    return "".join(f"library {line.removeprefix(before)} cannot be loaded" for line in list(failed)[:1])
