"""The growth of the error, step by step, of a model that is fed its own states."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ops.metrics import Sums
from transforms.compare.compare_results import ResultPair
from transforms.run.array_files import read_array
from transforms.run.sequences import DIGITS

MARKS = (1, 30, 300)
"""Steps after which errors are reported."""

_STEP = re.compile(rf"\.(\d{{{DIGITS}}})\.npy")


def step_sqnr(pairs: Sequence[ResultPair]) -> dict[str, dict[int, float]]:
    """Return the SQNR in dB of each output over the first 1, 30 and 300 steps of all sequences.

    Marks after the last step are left out. Empty unless the results are of steps, as named by
    ``tools.infer``. Outputs of integers, and results whose shape differs from the float model's, are left
    out.
    """
    sums: dict[str, dict[int, Sums]] = {}
    last = 0
    for pair in pairs:
        if (step := _STEP.search(pair.name)) is None:
            continue
        arrays = read_array(pair.baseline), read_array(pair.quantized)
        if arrays[0].shape != arrays[1].shape or arrays[0].dtype.kind != "f":
            continue
        last = max(last, number := int(step[1]))
        output_sums = sums.setdefault(pair.output, {mark: Sums() for mark in MARKS})
        for mark in MARKS:
            if number <= mark:
                output_sums[mark].add(*arrays)
    return {
        output: {mark: output_sums[mark].sqnr() for mark in MARKS if mark <= last}
        for output, output_sums in sums.items()
    }
