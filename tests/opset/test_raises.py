"""Oracle: what ONNX Runtime computes of each node, as it stands in the old opset, on random inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx.compose
import onnx.parser
import pytest
from numpy.typing import NDArray

from tests.helpers import conversion
from tests.helpers.opset_forms import NEWEST, OLDEST, forms
from tests.helpers.spread import spread
from transforms import convert_opset as module
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.graph.schemas import changes, definition
from transforms.model import graph_proto
from transforms.opset.raises import CHECKED
from transforms.opset.rules import RULES

_NO_KERNEL = {"RoiAlign": 22}
"""Definitions without a kernel in ONNX Runtime: there is nothing to compare from there on."""

_OTHER_ORDER = {"AveragePool": 9 * 2.0**-24, "Attention": 40 * 2.0**-24}
"""What adding up in another order may cost, as a share of the largest number: a rounding for each summand.

ONNX Runtime 1.32 has no kernel for the Attention of opset 25 and computes its function. Exponents up to 4
with 8 roundings (of a scale, sums of four products and a second scale) are off by 32; a Softmax and a sum of
three numbers by 4 each.
"""


def _batch(models: Iterable[onnx.ModelProto], opset: int) -> onnx.ModelProto:
    """Return one model of all, whose names begin with the place in the batch."""
    batch = onnx.ModelProto(ir_version=8, opset_import=[onnx.helper.make_opsetid("", opset)])
    batch.graph.name = "batch"
    for index, model in enumerate(models):
        graph = onnx.compose.add_prefix(model, f"c{index}_").graph
        for field in ("node", "input", "output", "initializer"):
            getattr(batch.graph, field).extend(getattr(graph, field))
    return batch


def _feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, NDArray]:
    """Return random inputs by the last letter of their names; free dimensions get 3."""
    random = np.random.default_rng(seed)
    held = {tensor.name for tensor in model.graph.initializer}
    result = {}
    for value in model.graph.input:
        if value.name in held:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else 3 for dim in kind.shape.dim]
        array = random.standard_normal(shape)
        name = value.name.split("_")[-1]
        array = (
            np.abs(array) + 0.1 if name == "p" else random.integers(0, 4, shape) if name in "uv" else array
        )
        result[value.name] = array.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return result


def _raised(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    graph = model_io.load(model)
    convert_opset(graph, target)
    raised = graph_proto.export_model(graph)
    onnx.checker.check_model(raised, full_check=True)
    return raised


def _assert_same(old: Mapping[str, NDArray], new: Mapping[str, NDArray], names: Mapping[str, str]) -> None:
    assert old.keys() == new.keys()
    for name, expected in old.items():
        op = names[name.split("_")[0]]
        if op in _OTHER_ORDER:
            bound = _OTHER_ORDER[op] * np.abs(expected).max() * 2  # each of the two is off
            assert np.abs(new[name] - expected).max() <= bound, (name, op)
        else:
            assert conversion.same({name: expected}, {name: new[name]}), (name, op)


_RAISES = [(old, new) for new in (13, NEWEST) for old in range(OLDEST, new)]


@pytest.mark.parametrize(("opset", "target"), spread(_RAISES, of=3))
def test_every_form_computes_the_same(opset: int, target: int) -> None:
    _compare([one for one in forms(opset) if target < _NO_KERNEL.get(one[0], NEWEST + 1)], opset, target)


@pytest.mark.parametrize("opset", (10, 16))
def test_forms_of_operators_without_newest_kernels_compute_the_same(opset: int) -> None:
    found = [one for one in forms(opset) if one[0] in _NO_KERNEL]
    _compare(found, opset, min(_NO_KERNEL.values()) - 1)


def _compare(found: Sequence[tuple[str, onnx.ModelProto]], opset: int, target: int) -> None:
    model = _batch((form for _, form in found), opset)
    names = {f"c{index}": op for index, (op, _) in enumerate(found)}
    feeds = _feeds(model)
    _assert_same(conversion.run(model, feeds), conversion.run(_raised(model, target), feeds), names)


def _operators() -> dict[str, list[int]]:
    """Return the opsets of all definitions of each operator, up to the newest that the tools raise to."""
    found = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= NEWEST:
            found[schema.name].add(schema.since_version)
    return {op: sorted(versions) for op, versions in found.items()}


def test_every_changed_definition_is_checked_or_has_a_rule() -> None:
    """Oracle: the schemas of the installed onnx. An operator that is new in an opset has no older meaning."""
    changed = {(op, opset) for op in _operators() for opset in changes(op, OLDEST, NEWEST)}
    ruled = {(op, opset) for op, rule in RULES.items() for opset in rule.steps}
    assert changed <= CHECKED.keys() | ruled
    assert CHECKED.keys() | ruled <= changed, "nothing stands there that did not change"
    assert not CHECKED.keys() & ruled


def test_every_entry_of_the_table_is_crossed_by_a_form() -> None:
    crossed = {
        (op, step)
        for opset in range(OLDEST, NEWEST)
        for op, _ in forms(opset)
        for step in changes(op, opset, NEWEST)
    }
    assert CHECKED.keys() <= crossed


def test_what_an_operator_that_only_gets_types_is_called_unchanged() -> None:
    assert changes("Relu", 7, NEWEST) == changes("MatMul", 7, NEWEST) == changes("Where", 9, NEWEST) == ()
    assert changes("Dropout", 7, 12) == (10, 12)
    assert changes("Split", 11, 18) == (13, 18)
    assert definition("Upsample", 6) != definition("Upsample", 7)


def _parse(text: str, opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')


def test_a_changed_definition_nobody_checked_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model_io.load(_parse("(float[2] x) => (int64[1] n) { n = Shape(x) }", 13))
    entries = {key: reason for key, reason in CHECKED.items() if key != ("Shape", 15)}
    monkeypatch.setattr(module, "CHECKED", entries)
    reason = r"from opset 13 to 17: Shape 'n': opset 15 defines it anew in a way not checked here$"
    with pytest.raises(model_io.ModelError, match=reason):
        convert_opset(graph, 17)
    assert (graph.opset, [node.op for node in graph.nodes]) == (13, ["Shape"])


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="the change came with opset 28")
def test_opsets_that_the_tools_do_not_raise_to_are_unchecked() -> None:
    text = "(float[1,1,2,2] x) => (float[1,4,1,1] y) { y = SpaceToDepth <blocksize = 2> (x) }"
    with pytest.raises(model_io.ModelError, match=r"SpaceToDepth 'y': opset 28 defines it anew"):
        convert_opset(model_io.load(_parse(text, 13)), 28)


def test_definitions_older_than_what_the_runtime_knows_are_refused() -> None:
    text = "(float[2,3] x, float[3] w) => (float[2,3] y) { y = Add <broadcast = 1> (x, w) }"
    with pytest.raises(model_io.ModelError, match=r"from opset 6 to 13: Add 'y': opset 7 defines it anew"):
        convert_opset(model_io.load(_parse(text, 6)), 13)
