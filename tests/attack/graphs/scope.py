"""A graph that grows node by node, each of which is run at once, so that what does not run never gets in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper, numpy_helper

from tests.attack.graphs.names import Names
from tests.attack.graphs.single_node import Runner

LOCAL = "local.functions"
LIMIT = 1e3
"""Largest absolute value of a float tensor: no rounding carries one to infinity."""
HUGE = 1e4
"""What is beyond stands for nothing, or for infinity: no rounding carries an ordinary number so far."""
_LARGEST = 3000
"""Most elements of a tensor."""
_UNDEFINED = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention"})
"""Operators that ONNX Runtime leaves the result of undefined where they sum over nothing."""


class Rejected(Exception):
    """What a rule tried does not run, or gives numbers of no use; another is tried."""


class Case:
    """What all graphs of a model share."""

    def __init__(self, rng: np.random.Generator, opset: int, ir_version: int, main: DTypeLike) -> None:
        self.rng, self.opset, self.ir_version, self.main = rng, opset, ir_version, np.dtype(main)
        self.names = Names(rng)
        self.functions: list[onnx.FunctionProto] = []
        self.empty = rng.random() < 0.12  # whether tensors without elements occur
        self.rules: dict[Callable[[Scope], None], float] = {}
        self.tried = self.rejected = 0

    @property
    def opsets(self) -> list[onnx.OperatorSetIdProto]:
        """The imports of the model."""
        local = [helper.make_opsetid(LOCAL, 1)] if self.functions else []
        return [helper.make_opsetid("", self.opset), *local]

    def chance(self, probability: float) -> bool:
        """Return true with a probability."""
        return bool(self.rng.random() < probability)

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Return one of some things."""
        return choices[int(self.rng.integers(len(choices)))]

    def size(self) -> int:
        """Return a size of a dimension."""
        if self.empty and self.chance(0.1):
            return 0
        return int(self.rng.integers(1, 6))

    def grow(self, scope: Scope, steps: int) -> None:
        """Try rules on a graph, one a step; those that do not fit leave it as it is."""
        rules = list(self.rules)
        weights = np.array([self.rules[rule] for rule in rules])
        for place in self.rng.choice(len(rules), steps, p=weights / weights.sum()):
            with contextlib.suppress(Rejected):
                rules[place](scope)

    def numbers(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return random numbers of a type."""
        dtype = np.dtype(dtype)
        if dtype.kind == "f":
            wide = self.rng.standard_normal(shape) * self.one_of((0.3, 1.0, 3.0))
            return np.asarray(wide, dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        low = 0 if dtype.kind == "u" else -3
        return np.asarray(self.rng.integers(low, 6, shape), dtype)


class Scope:
    """One graph: the main one, a body, or a function; ``values`` are those of this run.

    ``wild`` are tensors with infinities, NaN or huge numbers in them: nothing reads them but the rule that
    made them.
    """

    def __init__(self, case: Case, outer: Scope | None = None, *, sealed: bool = False) -> None:
        self.case, self.outer, self.sealed = case, outer, sealed
        self.values: dict[str, Any] = {}
        self.wild: dict[str, Any] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, NDArray[Any]] = {}
        self.sparse: dict[str, onnx.SparseTensorProto] = {}
        self.inputs: list[str] = []
        self.overridable: set[str] = set()
        self.node_names: set[str] = set()
        self.depth: int = 0 if outer is None else outer.depth + 1

    def visible(self) -> dict[str, Any]:
        """Return all values that a node may read, own ones last."""
        return {
            **(self.outer.visible() if self.outer and not self.sealed else {}),
            **self.wild,
            **self.values,
        }

    def ordinary(self) -> dict[str, Any]:
        """Return the values that any rule may read, own ones last."""
        return {**(self.outer.ordinary() if self.outer and not self.sealed else {}), **self.values}

    def fixed(self) -> dict[str, NDArray[Any]]:
        """Return the initializers that a node may read."""
        return {**(self.outer.fixed() if self.outer and not self.sealed else {}), **self.initializers}

    def pick(self, wanted: Callable[[Any], bool]) -> str | None:
        """Return a value that is as wanted, newer ones more often; None if there is none."""
        found = [name for name, value in self.ordinary().items() if wanted(value)]
        if not found:
            return None
        place = int(len(found) * self.case.rng.random() ** 0.5)
        return found[min(place, len(found) - 1)]

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: int = 1,
        *,
        domain: str = "",
        wild: bool = False,
        **attrs: Any,
    ) -> Any:
        """Add a node and return the name of its output, or of its outputs; Rejected if it does not run.

        A result with infinities, NaN or huge numbers is Rejected, too, unless it may be ``wild``.
        """
        self.case.tried += 1
        if not domain and _is_missing(op, self.case.opset):
            raise Rejected(f"{op} is not in opset {self.case.opset}")
        made = [self.case.names.tensor() for _ in range(outputs)]
        given = {key: value for key, value in attrs.items() if value is not None}
        name = self.case.names.node(op, self.node_names)
        try:
            node = helper.make_node(op, list(inputs), made, name, domain=domain, **given)
            runner = Runner(self.case.opsets, self.case.functions, checked=True)
            results = runner.run(node, self.visible(), self.fixed())
        except Exception as error:  # whatever the runtime says of it
            self.case.rejected += 1
            raise Rejected(f"{op}: {error}") from None
        self._refuse(op, [self.visible()[one] for one in inputs if one], list(results.values()), wild)
        self.nodes.append(node)
        for result, value in results.items():
            (self.values if is_ordinary(value) else self.wild)[result] = value
        return made[0] if outputs == 1 else made

    def _refuse(self, op: str, inputs: list[Any], results: list[Any], wild: bool) -> None:
        """Raise Rejected for results that later nodes could not use."""
        flat = [a for result in results for a in (result if isinstance(result, list) else [result])]
        for array in flat:
            if not isinstance(array, np.ndarray) or array.size > _LARGEST or array.ndim > 6:
                raise Rejected(f"{op}: no tensor of use")
            if not wild and not is_ordinary(array):
                raise Rejected(f"{op}: numbers out of range")
            if array.dtype.kind in "iu" and array.size and not (np.abs(array.astype(float)) < 2**24).all():
                raise Rejected(f"{op}: integers out of range")
        over_nothing = any(isinstance(a, np.ndarray) and a.size == 0 for a in inputs)
        if op in _UNDEFINED and over_nothing and any(a.size for a in flat):
            raise Rejected(f"{op}: a sum over nothing")

    def constant(self, array: NDArray[Any], *, plain: bool = False) -> str:
        """Return a tensor with these numbers: an initializer, a Constant node, or what comes to the same."""
        array, case = np.asarray(array), self.case
        same = [n for n, a in self.fixed().items() if a.dtype == array.dtype and np.array_equal(a, array)]
        if same and case.chance(0.5):
            return str(case.one_of(same))
        typed = case.opset >= 9 or array.dtype.kind == "f"  # what a Constant may hold
        if self.sealed or (typed and case.chance(0.2)):
            return self._constant_node(array)
        home: Scope = self
        while home.outer and not home.outer.sealed and (case.ir_version < 4 or case.chance(0.3)):
            home = home.outer
        name = case.names.tensor("w")
        home._hold(name, array)
        if home.outer is None and not plain and self._may_be_sparse(array) and case.chance(0.01):
            home.sparse[name] = sparse(array, name)
            return name
        home.initializers[name] = array
        if home.outer is None and (case.ir_version < 4 or case.chance(0.08)):
            home.overridable.add(name)
        return name

    def _may_be_sparse(self, array: NDArray[Any]) -> bool:
        return (
            is_ordinary(array)
            and array.dtype == np.float32
            and array.ndim in (1, 2)
            and array.size > 1
            and self.case.opset >= 11
        )

    def _constant_node(self, array: NDArray[Any]) -> str:
        case = self.case
        attrs: dict[str, Any] = {"value": numpy_helper.from_array(array)}
        short = {np.dtype(np.float32): "value_float", np.dtype(np.int64): "value_int"}.get(array.dtype)
        if case.opset >= 12 and short and array.ndim < 2 and array.size and case.chance(0.5):
            many = array.ndim == 1
            attrs = {short + "s" * many: array.tolist()}
        elif self._may_be_sparse(array) and not self.sealed and case.chance(0.01):
            name = case.names.tensor()
            self.nodes.append(helper.make_node("Constant", [], [name], sparse_value=sparse(array, "")))
            self.values[name] = array  # run alone, its output would be of a type that no operator takes
            return name
        return str(self.add("Constant", [], wild=True, **attrs))

    def _hold(self, name: str, array: NDArray[Any]) -> None:
        (self.values if is_ordinary(array) else self.wild)[name] = array

    def input(self, array: NDArray[Any]) -> str:
        """Return a new input of the main graph with this value; a constant within a body."""
        if self.outer is not None or self.sealed:
            return self.constant(array)
        name = self.case.names.tensor("x")
        self._hold(name, array)
        self.inputs.append(name)
        return name

    def float(
        self,
        shape: Sequence[int] | None = None,
        *,
        rank: int | None = None,
        least: int = 0,
        dtype: DTypeLike | None = None,
        fresh: float = 0.15,
    ) -> str:
        """Return a float tensor of a shape, or of a rank (at least ``least``), of one type if given."""

        def wanted(value: Any) -> bool:
            if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                return False
            fits = value.dtype == dtype if dtype is not None else True
            fits &= value.ndim == rank if rank is not None else value.ndim >= least
            return fits and (shape is None or value.shape == tuple(shape))

        found = None if self.case.chance(fresh) else self.pick(wanted)
        if found is not None:
            return found
        if shape is None:
            count = rank if rank is not None else int(self.case.rng.integers(least, max(least, 4) + 1))
            shape = [self.case.size() for _ in range(count)]
        array = self.case.numbers(shape, self.case.main if dtype is None else dtype)
        return self.input(array) if self.case.chance(0.5) else self.constant(array)

    def weight(self, shape: Sequence[int], dtype: DTypeLike, scale: float = 1.0) -> str:
        """Return a weight: mostly a constant, seldom an input or a computed tensor."""
        if self.case.chance(0.1):
            return self.float(shape, dtype=dtype)
        if self.case.chance(0.15):
            fits = (tuple(shape), np.dtype(dtype))
            shared = [n for n, a in self.fixed().items() if (a.shape, a.dtype) == fits and is_ordinary(a)]
            if shared:
                return str(self.case.one_of(shared))
        array = np.asarray(self.case.rng.standard_normal(shape) * scale, dtype)
        if self.case.chance(0.1) and array.size:
            array[np.abs(array) < 0.5 * scale] = 0
        return self.constant(array)

    def integers(self, numbers: Any, dtype: DTypeLike = np.int64) -> str:
        """Return a tensor of integers that say how a node works: a constant, an input, or computed."""
        array = np.asarray(numbers, dtype)
        if self.case.chance(0.08):
            return self.input(array)
        name = self.constant(array)
        if self.case.chance(0.08):
            return str(self.add("Identity", [name]))
        return name

    def of(self, name: str) -> NDArray[Any]:
        """Return the value of a tensor."""
        value = self.visible()[name]
        if not isinstance(value, np.ndarray):
            raise Rejected("no tensor")
        return value


def is_ordinary(value: Any) -> bool:
    """Return whether any rule may read a value: no infinity, no NaN, no huge number."""
    if isinstance(value, list):
        return all(map(is_ordinary, value))
    return value.dtype.kind != "f" or bool((np.abs(value) <= LIMIT).all())


def _is_missing(op: str, opset: int) -> bool:
    try:
        return bool(onnx.defs.get_schema(op, max_inclusive_version=opset).deprecated)
    except onnx.defs.SchemaError:
        return True


def sparse(array: NDArray[Any], name: str) -> onnx.SparseTensorProto:
    """Return a dense array as a sparse tensor with linear indices, or with coordinates."""
    flat = np.flatnonzero(array)
    at = flat if array.ndim == 1 or len(flat) % 2 else np.argwhere(array)
    values = numpy_helper.from_array(array.reshape(-1)[flat], name)
    indices = numpy_helper.from_array(np.asarray(at, np.int64), f"{name}_at" if name else "at")
    return helper.make_sparse_tensor(values, indices, list(array.shape))
