"""Subnormal numbers are kept where the thread treats them as zero.

Oracle: the same work in a fresh process whose threads keep them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ops import _library
from ops.subnormals import keeps_subnormals


def run(path: Path, flush: bool) -> dict[str, bytes]:
    command = [sys.executable, "-m", "tests.helpers.subnormal_results", str(path), str(int(flush))]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with np.load(path) as results:
        return {name: results[name].tobytes() for name in results.files}


@pytest.mark.heavy
def test_every_operator_and_function_gives_the_same_bits_with_denormals_as_zero(tmp_path: Path) -> None:
    flushing, keeping = (run(tmp_path / f"{flush}.npz", flush) for flush in (True, False))
    assert set(flushing) == set(keeping) and len(keeping) > 300
    different = [name for name in keeping if flushing[name] != keeping[name]]
    assert not different, f"{len(different)} of {len(keeping)} differ: {different[:20]}"


def test_a_guard_leaves_the_thread_as_it_was() -> None:
    @keeps_subnormals
    def fail() -> None:
        raise KeyError("x")

    before = _library.keep_subnormals()
    with pytest.raises(KeyError, match="x"):
        fail()
    assert _library.keep_subnormals() == 0
    _library.flush_again(before)
    assert fail.__name__ == "fail"
