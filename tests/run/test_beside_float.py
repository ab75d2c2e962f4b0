"""Time of a model beside its float model. Oracle: models whose order of cost is known."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from transforms.run import beside_float
from transforms.run.beside_float import BesideFloat, time_beside_float
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions

FEED = {"x": np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)}


def path_of(folder: Path, name: str, nodes: str) -> Path:
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> main (float[64,256] x) => (float[64,256] y) {{ {nodes} }}'
    )
    onnx.save(onnx.parser.parse_model(text), folder / name)
    return folder / name


def timed(made: Path, before: Path) -> BesideFloat:
    openers = partial(open_model, made), partial(open_model, before)
    return time_beside_float(openers, (FEED, FEED), RunOptions(threads=1))


def test_a_slower_model_names_the_operators_that_it_has_more_of(tmp_path: Path) -> None:
    before = path_of(tmp_path, "a.onnx", "y = Relu(x)")
    chain = " ".join(f"e{i} = Erf({'x' if not i else f'e{i - 1}'})" for i in range(20))
    made = path_of(tmp_path, "b.onnx", f"{chain} y = Relu(e19)")
    found = timed(made, before)
    assert found.is_slower and found.made.median > found.before.median
    (one,) = found.lost
    assert (one.op, one.nodes, one.before) == ("Erf", 20, 0) and 0 < one.seconds < 10 * found.made.high


def test_the_float_model_is_not_slower_than_a_slow_one(tmp_path: Path) -> None:
    before = path_of(tmp_path, "a.onnx", "a = Erf(x) b = Erf(a) c = Erf(b) d = Erf(c) y = Erf(d)")
    found = timed(path_of(tmp_path, "b.onnx", "y = Relu(x)"), before)
    assert not found.is_slower and found.lost == () and found.ratio.median < 1


def test_kernels_of_the_optimizer_are_held_against_what_they_stand_for() -> None:
    made = {"QLinearConv": (2, 3e-3), "QuantizeLinear": (1, 1e-3), "Relu": (1, 1e-3)}
    before = {"FusedConv": (2, 2e-3), "Relu": (1, 2e-3)}
    first, second = beside_float._lost(made, before)
    assert (first.op, first.nodes, first.seconds) == ("QLinearConv", 2, 3e-3)
    assert first.before == pytest.approx(2e-3)
    assert (second.op, second.before) == ("QuantizeLinear", 0)


def test_rounds_end_where_the_ratio_is_known() -> None:
    even = [[1.0] * 5, [2.0] * 5]
    assert beside_float._is_narrow(even) and not beside_float._is_narrow([[1.0] * 4, [2.0] * 4])
    assert not beside_float._is_narrow([[1.0, 2.0, 1.0, 2.0, 3.0], [1.0] * 5])
