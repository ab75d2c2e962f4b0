"""What the processor at hand can do, as far as it decides how models of integers run."""

from __future__ import annotations

import platform
from pathlib import Path

_INFO = Path("/proc/cpuinfo")
_X86 = ("x86_64", "amd64", "i386", "i686")


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
