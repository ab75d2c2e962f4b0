"""Kernels of ``ops`` on processors that they were not tried on before: x86 without AVX, and aarch64.

Oracles: those of the tests of ``ops``, run there; the same call on this processor, which those tests hold
against ``ops/reference.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ops
from tests.helpers.aarch64 import make_python
from tests.helpers.emulated import NEHALEM, run_on
from tests.helpers.number_patterns import PATTERNS, make_pattern
from tests.helpers.operator_sessions import BFLOAT16, assert_same
from tests.processors import round_arrays

pytestmark = pytest.mark.heavy

MODULES = ("blocks", "blocks_borders", "bfloat16", "integers", "linear", "formats", "histograms")
"""Tests of kernels that take a few minutes there."""

SHAPES = (3, 33, 5), (4, 100)


def test_operators_without_avx() -> None:
    modules = [f"tests/ops/test_{name}.py" for name in MODULES]
    said = run_on(NEHALEM, "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules)
    print(said)
    assert " passed" in said and "skipped" not in said


def test_formats_of_a_wheel_for_aarch64(tmp_path: Path) -> None:
    random, arrays = np.random.default_rng(3), {}
    for pattern in PATTERNS:
        for shape in SHAPES:
            for dtype in (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16):
                with np.errstate(invalid="ignore", over="ignore"):
                    x = make_pattern(pattern, shape, random).astype(dtype)
                arrays[f"{pattern} {shape} {dtype.name}"] = x.view(f"u{dtype.itemsize}")
    np.savez(tmp_path / "arrays.npz", **arrays)  # type: ignore[arg-type]
    python = make_python(tmp_path / "aarch64")
    made = tmp_path / "rounded.npz"
    said = python.run(round_arrays.__file__, tmp_path / "arrays.npz", made)
    assert f"aarch64, {python.folder}/site/onnx_narrow/ops/__init__.py\n" in said
    with np.load(made) as found:
        for name, expected in round_arrays.rounded(arrays).items():
            for fmt, bits, wanted in zip(ops.FORMATS, found[name], expected, strict=True):
                try:
                    assert_same(round_arrays.typed(bits, name), wanted)
                except AssertionError as error:
                    error.add_note(f"{fmt}: {name}")
                    raise
