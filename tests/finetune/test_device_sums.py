"""Sums on a device. Oracle: the same on NumPy; an array that is none of NumPy's stands in for a device's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ops.rounding import LayerProblem
from ops.rounding.quadratic import shifted_target
from transforms.finetune import gram
from transforms.finetune.gram import GramStats


class Far(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that NumPy cannot look into, as CuPy's: functions that go to it do; ``get`` copies."""

    calls: int = 0

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    shape = property(lambda self: self.array.shape)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        Far.calls += 1
        kwargs = {name: _near(value) for name, value in kwargs.items() if name != "like"}
        return _far(function(*map(_near, args), **kwargs))

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        made = getattr(ufunc, method)(*map(_near, args), **{k: _near(v) for k, v in kwargs.items()})
        return out[0] if out else _far(made)

    def __getitem__(self, index: Any) -> Far:
        return Far(self.array[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = _near(value)

    def __len__(self) -> int:
        return len(self.array)

    def __bool__(self) -> bool:
        return bool(self.array)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.array, name)
        return (lambda *a, **k: _far(found(*map(_near, a), **k))) if callable(found) else found

    def get(self) -> np.ndarray:
        return self.array.copy()


def _near(value: Any) -> Any:
    return tuple(map(_near, value)) if isinstance(value, tuple) else getattr(value, "array", value)


def _far(value: Any) -> Any:
    return Far(value) if isinstance(value, np.ndarray | np.generic) else value


MODULE = SimpleNamespace(zeros=lambda shape: Far(np.zeros(shape)))


def _sums(module: Any, groups: int = 2) -> GramStats:
    random = np.random.default_rng(0)
    found = GramStats.zeros(groups, 5, 7, module)
    for _ in range(2):
        x, y = (random.standard_normal((groups, 30, size)).astype(np.float32) for size in (7, 5))
        found.add(x, y)
    return found


@pytest.mark.parametrize("groups", [1, 2])
def test_sums_on_a_device_are_those_of_numpy(groups: int) -> None:
    wanted, made = _sums(np, groups), _sums(MODULE, groups)
    assert isinstance(made.xx, Far)
    made = made.on_host()
    for name in ("count", "x", "y", "xx", "yx", "yy"):
        np.testing.assert_array_equal(getattr(made, name), getattr(wanted, name))


@pytest.mark.parametrize("small", [0, 1 << 24])
def test_large_products_and_solutions_are_found_there(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram, "_SMALL", small)
    random = np.random.default_rng(1)
    weights, bias = random.standard_normal((2, 5, 7)), random.standard_normal((2, 5))
    wanted, made = _sums(np), (_sums(MODULE) + _sums(MODULE)).on_host()
    wanted = wanted + wanted
    Far.calls = 0
    for sums in (made, made.centred(), made.of_layer(weights, bias), made + made):
        assert sums.place is not None
    np.testing.assert_array_equal(made.error(weights, bias), wanted.error(weights, bias))
    np.testing.assert_array_equal(made.error(weights), wanted.error(weights))
    problem = LayerProblem(weights, wanted.xx, wanted.yx)
    np.testing.assert_array_equal(shifted_target(problem, 0.1, made.solver), shifted_target(problem, 0.1))
    assert bool(Far.calls) is (small == 0)
