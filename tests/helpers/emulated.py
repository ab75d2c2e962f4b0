"""Programs on other processors: QEMU's user-mode emulators run them, from Debian's package ``qemu-user``.

``/proc/cpuinfo`` shows the processor of this machine there, CPUID the emulated one.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

HASWELL = "Haswell"
"""An x86 processor with AVX2 and without VNNI."""

NEHALEM = "Nehalem"
"""An x86 processor without AVX."""

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 3600  # seconds
_OF_EMULATOR = "qemu-"  # features that it does not have


def run_on(cpu: str, *arguments: object) -> str:
    """Run this Python with arguments as on an x86 processor, and return what it prints.

    Skips the test on other machines and where the emulator is missing; AssertionError if the program fails.
    """
    if platform.machine() != "x86_64":
        pytest.skip(f"programs of x86-64 are emulated on x86-64 alone, this is {platform.machine()}")
    more = {"PYTHONPATH": str(ROOT), "OPENBLAS_CORETYPE": cpu}  # which OpenBLAS would take for a newer one
    return emulate([emulator("qemu-x86_64"), "-cpu", cpu, sys.executable], arguments, more)


def emulator(name: str) -> str:
    """Return the path of an emulator; skips the test where it is missing."""
    if (path := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install qemu-user)")
    return path


def emulate(command: list[str], arguments: tuple[object, ...], more: Mapping[str, str]) -> str:
    """Run a program, with more in its environment, and return what it prints, errors last.

    AssertionError with the errors if it fails.
    """
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **more}
    words = [*command, *map(str, arguments)]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith(_OF_EMULATOR)]
    assert done.returncode == 0, "\n".join([f"{' '.join(words)} ended with {done.returncode}:", *said])
    return "\n".join([done.stdout, *said])
