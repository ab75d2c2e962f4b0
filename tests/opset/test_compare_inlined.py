"""Oracle: inlining that is made to lose defaults, as onnx's inliner alone does."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from transforms import model_io
from transforms.runtime import compare_runs

LEAKY = "D <k: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @k> (x) }"
PLAIN = "P (x) => (y) { y = Neg (x) }"


def model(nodes: str, *functions: str, more: str = "") -> onnx.ModelProto:
    text = (
        f'<ir_version: 10, opset_import: ["": 18, "f": 1{more}]> '
        f"main (float[N, 4] x) => (float[N, 4] y) {{ {nodes} }}"
    )
    return onnx.parser.parse_model(
        text + "".join(f'<domain: "f", opset_import: ["": 18, "f": 1{more}]> {one}' for one in functions)
    )


def notes(source: onnx.ModelProto) -> list[str]:
    return [note for note in model_io.load(source).info.notes if "inlined" not in note]


@pytest.mark.parametrize("functions", [(LEAKY, PLAIN), (PLAIN, LEAKY)])
@pytest.mark.parametrize(
    "nodes", ["a = f.P (x) y = f.D (a)", "a = f.P (x) b = f.P (a) c = f.D (b) y = Abs (c)"]
)
def test_what_inlining_changes_is_an_error_that_names_the_functions(
    monkeypatch: pytest.MonkeyPatch, functions: tuple[str, ...], nodes: str
) -> None:
    assert notes(model(nodes, *functions)) == []
    monkeypatch.setattr("transforms.model.local_functions.write_defaults", lambda model: model)
    with pytest.raises(model_io.ModelError, match=r"^inlining .*'f::D'.*: output 'y' differs on random"):
        model_io.load(model(nodes, *functions))


def test_a_model_without_functions_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_runs, "_open", None)
    assert notes(model("y = Relu (x)")) == []


UNKNOWN = "U (x) => (y) { y = own.Unknown (x) }"
DRAWN = "R (x) => (y) { n = RandomNormalLike (x) y = Add (x, n) }"


@pytest.mark.parametrize(("source", "reason"), [
    (model("y = f.U (x)", UNKNOWN, more=', "own": 1'), "does not run the original"),
    (model("y = f.R (x)", DRAWN), "RandomNormalLike draws other numbers"),
])  # fmt: skip
def test_what_can_not_be_run_is_not_refused_but_said(source: onnx.ModelProto, reason: str) -> None:
    (note,) = notes(source)
    assert note.startswith("Inlining of local functions not checked by a run: ") and reason in note


def test_large_weights_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model("a = Gather (w, i) b = Add (a, x) y = f.P (b)", PLAIN)
    source.graph.initializer.append(onnx.helper.make_tensor("w", 1, [4096, 4], bytes(1 << 16), raw=True))
    source.graph.initializer.append(onnx.helper.make_tensor("i", 7, [1], [0]))
    monkeypatch.setattr(compare_runs, "MOST_WEIGHTS", 1000)
    (note,) = notes(source)
    assert "65,536 bytes of weights, more than 1,000" in note
