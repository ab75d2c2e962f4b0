"""ONNX models in low-precision number formats, decided by their outputs, exact to the bit, without torch.

    import onnx_narrow

    result = onnx_narrow.quantize("model.onnx", "small.onnx", config="A8W8", data="samples")
    print(result)

Each function does what the command of its name does, with the same result: ``onnx-narrow quantize --help``.
The packages below are ``ops`` (number formats and operators), ``transforms`` (rewrites of graphs) and
``tools`` (the commands).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnx_narrow import checkout

if TYPE_CHECKING:
    import ops as ops
    import tools as tools
    import transforms as transforms
    from onnx_narrow.api.check import check
    from onnx_narrow.api.convert_bf16 import convert_bf16
    from onnx_narrow.api.evaluate import evaluate
    from onnx_narrow.api.finetune import finetune
    from onnx_narrow.api.infer import infer
    from onnx_narrow.api.inspect import inspect
    from onnx_narrow.api.listing import formats, presets, targets
    from onnx_narrow.api.mix_precision import mix_precision
    from onnx_narrow.api.models import load, save
    from onnx_narrow.api.quantize import quantize
    from onnx_narrow.api.report import report
    from onnx_narrow.api.result import Result
    from transforms.pipelines.recipes import QUANTIZE
    from transforms.scheme import Scheme, preset

__version__: str

_HOMES = {
    "QUANTIZE": "transforms.pipelines.recipes",
    "Result": "onnx_narrow.api.result",
    "Scheme": "transforms.scheme",
    "check": "onnx_narrow.api.check",
    "convert_bf16": "onnx_narrow.api.convert_bf16",
    "evaluate": "onnx_narrow.api.evaluate",
    "finetune": "onnx_narrow.api.finetune",
    "formats": "onnx_narrow.api.listing",
    "infer": "onnx_narrow.api.infer",
    "inspect": "onnx_narrow.api.inspect",
    "load": "onnx_narrow.api.models",
    "mix_precision": "onnx_narrow.api.mix_precision",
    "preset": "transforms.scheme",
    "presets": "onnx_narrow.api.listing",
    "quantize": "onnx_narrow.api.quantize",
    "report": "onnx_narrow.api.report",
    "save": "onnx_narrow.api.models",
    "targets": "onnx_narrow.api.listing",
}
"""The module of each public name, imported at its first use."""

__all__ = [
    "QUANTIZE",
    "Result",
    "Scheme",
    "check",
    "convert_bf16",
    "evaluate",
    "finetune",
    "formats",
    "infer",
    "inspect",
    "load",
    "mix_precision",
    "preset",
    "presets",
    "quantize",
    "report",
    "save",
    "targets",
]

checkout.join()


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name == "__version__":
        from importlib import metadata

        value: Any = metadata.version("onnx-narrow")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in checkout.FOLDERS:
        value = importlib.import_module(f"onnx_narrow.{name}")
    else:
        raise AttributeError(f"module 'onnx_narrow' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether imported yet or not."""
    return sorted({*globals(), *__all__, *checkout.FOLDERS, "__version__"})
