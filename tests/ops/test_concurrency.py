"""Many threads, many sessions, changing shapes, read-only inputs. Oracle: the same work done serially."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.helpers.operator_sessions import BFP, MX, assert_same, block_session, run_twin

CASES: list[tuple[str, dict[str, Any]]] = [
    (BFP, {}),
    (BFP, {"bfp_method": "to_bfp_prime", "block_size": 16}),
    (MX, {"element_dtype": "fp8_e4m3", "axis": 0}),
]


@pytest.mark.parametrize(("op", "attributes"), CASES)
def test_sixteen_threads_on_one_session_and_on_many(op: str, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((65 + 8 * i, 1100), np.float32) for i in range(16)]
    copies = [x.copy() for x in inputs]
    shared = block_session(op, attributes, threads=2)
    serial = [shared.run(None, {"x": x})[0] for x in inputs]

    def work(i: int) -> list[np.ndarray]:
        own = block_session(op, attributes)
        return [session.run(None, {"x": inputs[i]})[0] for session in (shared, own, shared)]

    with ThreadPoolExecutor(16) as executor:
        for expected, results in zip(serial, executor.map(work, range(16)), strict=True):
            for y in results:
                assert_same(y, expected)
    assert all(np.array_equal(x, copy) for x, copy in zip(inputs, copies, strict=True))


@pytest.mark.parametrize(("op", "attributes"), CASES)
def test_rank_and_shape_change_between_runs(op: str, attributes: dict[str, Any]) -> None:
    session = block_session(op, attributes)
    rng = np.random.default_rng(1)
    for shape in [(40,), (3, 37), (2, 9, 5), (1, 1), (70, 1001), (2, 3, 4, 5), (0, 3), (3, 37)]:
        x = rng.standard_normal(shape).astype(np.float32)
        assert_same(session.run(None, {"x": x})[0], run_twin(op, attributes, x))


@pytest.mark.parametrize(("op", "attributes"), [*CASES, (BFP, {"convert_to_bfloat_before_bfp": 1})])
def test_read_only_inputs_are_accepted_and_unchanged(op: str, attributes: dict[str, Any]) -> None:
    x = np.random.default_rng(2).standard_normal((33, 65), np.float32)
    copy = x.copy()
    x.flags.writeable = False
    assert_same(block_session(op, attributes).run(None, {"x": x})[0], run_twin(op, attributes, x))
    assert np.array_equal(x, copy)
