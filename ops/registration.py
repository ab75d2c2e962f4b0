"""The two libraries that a session can register for the native operators, and the domains they serve."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ops._library import __file__ as _OWN_LIBRARY
from ops._library import add_to_extensions as _add_to_extensions
from ops._library import knows_runtime

if TYPE_CHECKING:
    import onnxruntime

DOMAIN = "ai.onnx.contrib"
AMD_DOMAIN = "com.amd.quark"
DEVICES = ("CPU", "CUDA", "ROCM")


def get_library_path(device: str = "CPU", *, domain: str = DOMAIN) -> str:
    """Return the library with the operators of a domain for ``SessionOptions.register_custom_ops_library``.

    For ``"ai.onnx.contrib"`` that is onnxruntime-extensions' own library, into which importing ``ops`` has
    put our operators; for ``"com.amd.quark"`` it is the library of this package. The kernels run on the CPU:
    "CUDA" and "ROCM" (upper or lower case) name the device of the session's other nodes, as code written for
    AMD Quark does, and give the same library. Raises ValueError for other devices and domains.
    """
    if device.upper() not in DEVICES:
        raise ValueError(f"device '{device}' is not supported, legal are {', '.join(DEVICES)}")
    libraries = {DOMAIN: _extensions_library, AMD_DOMAIN: _own_library}
    if domain not in libraries:
        raise ValueError(f"domain '{domain}' has no operators here, legal are {', '.join(libraries)}")
    bind_runtime()
    return libraries[domain]()


def register_custom_ops(options: onnxruntime.SessionOptions) -> None:
    """Register our operators of both domains in the options of a session to be created.

    Call it once per SessionOptions: ONNX Runtime refuses to register a library twice.
    """
    for domain in (DOMAIN, AMD_DOMAIN):
        options.register_custom_ops_library(get_library_path(domain=domain))


def add_to_extensions() -> None:
    """Add the operators to onnxruntime-extensions, without its Python side. Called when ops is imported."""
    extensions = ctypes.CDLL(_extensions_library())
    address = ctypes.cast(extensions.AddExternalCustomOp, ctypes.c_void_p).value
    _add_to_extensions(address)


def bind_runtime() -> None:
    """Give our library ONNX Runtime's functions, which shape inference calls without passing them."""
    if not knows_runtime():
        import onnxruntime

        onnxruntime.SessionOptions().register_custom_ops_library(_own_library())


def meet_imported_runtime() -> None:
    """Bind the runtime if it is already imported. Otherwise get_library_path does."""
    if "onnxruntime" in sys.modules:
        bind_runtime()


def _own_library() -> str:
    return str(Path(_OWN_LIBRARY).resolve())


def _extensions_library() -> str:
    spec = importlib.util.find_spec("onnxruntime_extensions")
    folders = spec.submodule_search_locations if spec else None
    files = (path for folder in folders or () for path in Path(folder).glob("_extensions_pydll*"))
    libraries = [path for path in files if path.suffix in (".so", ".pyd", ".dylib")]
    if not libraries:
        raise OSError(
            "the library of onnxruntime-extensions is not installed: pip install onnxruntime-extensions"
        )
    return str(libraries[0])
