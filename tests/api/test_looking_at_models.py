"""Running, comparing and describing models in Python. Oracle: the commands, and the same as files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_narrow
from onnx_narrow.api.sources import samples_folder
from tests.helpers import report_costs, tunable
from tools import evaluate, infer, inspect
from transforms import model_io
from transforms.run.events import Events
from transforms.runtime.inputs import model_inputs
from transforms.scheme.presets import PRESETS
from transforms.scheme.targets import TARGETS

NETWORK = tunable.conv_net()
INPUT = NETWORK.graph.input[0].name
SAMPLES = tunable.samples(NETWORK, 4)
ROWS = len(SAMPLES) * len(SAMPLES[0][INPUT])


class Collected(Events):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def rounded() -> onnx.ModelProto:
    return onnx_narrow.quantize(NETWORK, config="MX6", time=False).model


@pytest.fixture
def folder(tmp_path: Path, rounded: onnx.ModelProto) -> Path:
    """Return a folder of both models and the samples."""
    onnx.save(NETWORK, tmp_path / "m.onnx")
    onnx.save(rounded, tmp_path / "q.onnx")
    (tmp_path / "data").mkdir()
    for i, sample in enumerate(SAMPLES):
        np.savez(tmp_path / "data" / f"{i:06d}.npz", **sample)
    return tmp_path


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.npy")}


@pytest.mark.parametrize(
    "data", [lambda: iter(SAMPLES), [sample[INPUT] for sample in SAMPLES], iter(SAMPLES)]
)
def test_samples_in_memory_are_written_in_order(data: Any, tmp_path: Path) -> None:
    written = samples_folder(data, lambda: model_inputs(model_io.load(NETWORK)), tmp_path)
    found = [np.load(file)[INPUT] for file in sorted(written.iterdir())]
    assert all(np.array_equal(one, sample[INPUT]) for one, sample in zip(found, SAMPLES, strict=True))


def test_results_are_those_of_the_command(folder: Path) -> None:
    words = ["--input", "m.onnx", "--data", "data", "--output", "command"]
    assert infer.main([word if word[0] == "-" else str(folder / word) for word in words]) == 0
    found = onnx_narrow.infer(NETWORK, folder / "call", data=SAMPLES)
    assert _files(folder / "call") == _files(folder / "command") != {}
    assert {*found.values()} == {folder / "call"} and [*found] == [NETWORK.graph.output[0].name]


def test_results_go_into_a_folder_that_is_not_empty_by_force(folder: Path) -> None:
    name = NETWORK.graph.output[0].name
    with pytest.raises(FileExistsError, match="is not empty; force writes into it"):
        onnx_narrow.infer(NETWORK, folder, data=SAMPLES, output_names=name)
    onnx_narrow.infer(NETWORK, folder, data=SAMPLES, output_names=name, force=True)
    with pytest.raises(ValueError, match="is the folder of samples"):
        onnx_narrow.infer(NETWORK, folder / "data", data=folder / "data", force=True)


def test_a_model_in_memory_is_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report_costs.measure_here(monkeypatch)
    told = Collected()
    onnx_narrow.infer(NETWORK, folder / "r", data=iter(SAMPLES), time=NETWORK, progress=told)
    assert any(line.startswith("Time per sample: ") for line in told.lines)


def test_figures_are_those_of_the_command(folder: Path, rounded: onnx.ModelProto) -> None:
    for model, name in ((NETWORK, "a"), (rounded, "b")):
        onnx_narrow.infer(model, folder / name, data=SAMPLES)
    words = ["--baseline_results_folder", "a", "--quantized_results_folder", "b", "--json", "f.json"]
    assert evaluate.main([word if word[0] == "-" else str(folder / word) for word in words]) == 0
    written = json.loads((folder / "f.json").read_text())
    assert onnx_narrow.evaluate(folder / "a", folder / "b") == written
    assert onnx_narrow.evaluate(NETWORK, rounded, data=iter(SAMPLES)) == written


@pytest.mark.parametrize("form", [np.asarray, list, "path"])
def test_labels_are_an_array_or_a_file(form: Callable[[Any], Any] | str, tmp_path: Path) -> None:
    labels = np.zeros(ROWS, np.int64)
    np.save(tmp_path / "labels.npy", labels)
    given = str(tmp_path / "labels.npy") if isinstance(form, str) else form(labels)
    found = onnx_narrow.evaluate(NETWORK, NETWORK, data=SAMPLES, labels=given)
    assert found["top1"]["count"] == ROWS and found["top1"]["agreement"] == 1


def test_limits_name_keywords(rounded: onnx.ModelProto, tmp_path: Path) -> None:
    name = NETWORK.graph.output[0].name
    given: dict[str, Any] = {"data": SAMPLES, "logits": name}
    with pytest.raises(ValueError, match=r"^max_kl=0 is missed: \d"):
        onnx_narrow.evaluate(NETWORK, rounded, **given, max_kl=0, json=tmp_path / "f.json")
    assert json.loads((tmp_path / "f.json").read_text())["language"]["kl"] > 0
    with pytest.raises(FileExistsError, match="exists; force overwrites it"):
        onnx_narrow.evaluate(NETWORK, rounded, **given, json=tmp_path / "f.json")


def test_a_report_of_models_in_memory_proposes_calls_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the calls themselves, evaluated with variables of the names that they have."""
    report_costs.measure_here(monkeypatch)
    small = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES, fast=True, time=False).model
    told = Collected()
    given: dict[str, Any] = {"data": SAMPLES, "progress": told, "json": tmp_path / "r.json"}
    rows = onnx_narrow.report(NETWORK, small, tmp_path / "r.html", **given)
    assert {"layer", "own_db", "share"} <= rows[0].keys()
    said = json.loads((tmp_path / "r.json").read_text())
    assert said["float"] == said["quantized"] == "model in memory"
    calls = [line[line.index("onnx_narrow.") :] for line in told.lines if "onnx_narrow." in line]
    assert calls and not any("onnx-narrow-" in line or "python -m" in line for line in told.lines)
    monkeypatch.chdir(tmp_path)
    known = {"onnx_narrow": onnx_narrow, "float_model": NETWORK, "quantized": small, "data": SAMPLES}
    for call in calls:
        for file in tmp_path.glob("q_*.onnx"):
            file.unlink()
        eval(call, known)
        assert len([*tmp_path.glob("q_*.onnx")]) == 1
    assert "<h1>q.onnx</h1>" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_model_in_memory_is_that_of_the_file(folder: Path, rounded: onnx.ModelProto) -> None:
    def _of(model: Any, **given: Any) -> dict[str, Any]:
        found = onnx_narrow.inspect(model, **given)
        return {key: value for key, value in found.items() if key not in ("file", "files")}

    assert _of(rounded) == _of(folder / "q.onnx")
    assert _of(onnx_narrow.load(folder / "m.onnx"))["weights"] == _of(folder / "m.onnx")["weights"]
    for lists in ({"layers": True}, {"tensors": True}, {"layers": True, "tensors": True}):
        assert _of(rounded, **lists) == _of(folder / "q.onnx", **lists)
    found = onnx_narrow.inspect(NETWORK, against=rounded)["differences"]
    assert found == onnx_narrow.inspect(folder / "m.onnx", against=folder / "q.onnx")["differences"]
    before = NETWORK.SerializeToString()
    assert onnx_narrow.check(NETWORK, "ort-cpu") == onnx_narrow.check(folder / "m.onnx", "ort-cpu")
    assert NETWORK.SerializeToString() == before


def test_lists_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Collected()
    found = onnx_narrow.inspect(folder / "m.onnx", layers=True, progress=told)
    assert inspect.main([str(folder / "m.onnx"), "--layers"]) == 0
    assert capsys.readouterr().out.splitlines() == told.lines
    assert [one["operator"] for one in found["layers"]] == [node.op_type for node in NETWORK.graph.node]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("infer", {"data": SAMPLES, "generate": "3"}, "generate is '3', not a whole number from 0"),
    ("infer", {"data": SAMPLES, "output_names": 3}, "output_names is 3, not a list of strings"),
    ("infer", {"data": SAMPLES, "time": 3}, "time is 3, not a path, a ModelProto, a Graph or a Result"),
    ("infer", {"data": SAMPLES, "threads": 1.5}, "threads is 1.5, not a whole number"),
    ("infer", {"data": 3}, "samples are a folder, a reader or an iterable, not int"),
    ("infer", {}, "missing 1 required keyword-only argument: 'data'"),
    ("evaluate", {"data": SAMPLES, "labels": 3}, "labels is 3, not a path or an array"),
    ("evaluate", {"data": SAMPLES, "peak": "x"}, "peak is 'x', not a number above 0"),
    ("evaluate", {"data": SAMPLES, "metrics": [abs]}, "metrics is .*, not a mapping"),
    ("evaluate", {"data": SAMPLES, "metrics": {"a": 3}}, "metrics: 'a' is 3, not a callable"),
    ("evaluate", {"data": SAMPLES, "json": True}, "json is True, not a path"),
    ("evaluate", {"data": SAMPLES, "max_kl": None, "min_sam": 1}, "unexpected keyword argument 'min_sam'"),
    ("evaluate", {}, "baseline: without data, results are compared: a folder, not a ModelProto"),
    ("report", {"data": SAMPLES, "min_sqnr": "30"}, "min_sqnr is '30', not a number"),
    ("report", {"data": SAMPLES, "force": 1}, "force is 1, not True or False"),
    ("report", {"data": SAMPLES, "limits": 1}, "unexpected keyword argument 'limits'"),
    ("report", {"data": SAMPLES, "feeds_from": 1}, "feeds_from is 1, not a path, a ModelProto"),
    ("check", {"target": 3}, "target is 3, not a string"),
    ("inspect", {"layers": 1}, "layers is 1, not True or False"),
    ("inspect", {"against": 1}, "against is 1, not a path, a ModelProto"),
    ("inspect", {"layer": True}, "unexpected keyword argument 'layer'"),
]
PLACES: dict[str, tuple[Any, ...]] = {
    "infer": (NETWORK, "results"),
    "evaluate": (NETWORK, NETWORK),
    "report": (NETWORK, NETWORK, "r.html"),
    "check": (NETWORK,),
    "inspect": (NETWORK,),
}


@pytest.mark.parametrize(("name", "given", "words"), WRONG)
def test_a_value_of_another_type_is_a_type_error(
    name: str, given: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=words):
        getattr(onnx_narrow, name)(*PLACES[name], **given)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_model_is_a_type_error(name: str, tmp_path: Path) -> None:
    given = {"target": "qnn"} if name == "check" else {} if name == "inspect" else {"data": SAMPLES}
    places = [3 if place is NETWORK else tmp_path / place for place in PLACES[name]]
    with pytest.raises(TypeError, match=r"^a model is a path, a ModelProto, a Graph or a Result, not int$"):
        getattr(onnx_narrow, name)(*places, **given)


VAIN: list[tuple[str, dict[str, Any], str]] = [
    ("infer", {"data": SAMPLES, "states": {"h": "o"}}, "states requires sequences"),
    (
        "infer",
        {"data": SAMPLES, "generate": 3, "sequences": True},
        "generate cannot be combined with sequences",
    ),
    ("evaluate", {"limit": 3}, "limit requires data"),
    ("evaluate", {"threads": 3}, "threads requires data"),
    ("evaluate", {"data": SAMPLES, "min_same": 0.5}, "min_same requires logits"),
    ("evaluate", {"data": SAMPLES, "force": True}, "force requires json or csv"),
    ("evaluate", {"data": SAMPLES, "json": "a", "csv": "./a"}, "json and csv are the same file, './a'"),
    ("report", {"data": SAMPLES, "csv": "r.html"}, "output and csv are the same file, 'r.html'"),
    ("inspect", {"tensors": True, "against": NETWORK}, "tensors and against cannot be combined"),
]


@pytest.mark.parametrize(("name", "given", "words"), VAIN)
def test_a_keyword_in_vain_is_refused(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        getattr(onnx_narrow, name)(*PLACES[name], **given)


def test_unknown_targets_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="'ort-cpu'"):
        onnx_narrow.check(NETWORK, "ort-cup")


CODE = """
import sys, numpy, onnx_narrow
samples = [numpy.full((2, 1, 8, 8), i / 8, "float32") for i in range(2)]
model, folder = "tests/examples/digits.onnx", sys.argv[1]
onnx_narrow.infer(model, folder + "/r", data=samples)
onnx_narrow.evaluate(model, model, data=samples)
onnx_narrow.inspect(model), onnx_narrow.check(model, "qnn"), onnx_narrow.report
onnx_narrow.presets(), onnx_narrow.targets(), onnx_narrow.formats()
print(*(name for name in sys.modules if name == "tools" or name.startswith(("tools.", "onnx_narrow.tools"))))
"""


def test_no_module_of_the_commands_is_imported(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [] and done.stderr == ""


def test_presets_say_what_they_need() -> None:
    found = onnx_narrow.presets()
    assert [*found] == [*PRESETS] and found["W8"].tuned == ("_ADAQUANT", "_ADAROUND")
    for name in PRESETS:
        try:
            onnx_narrow.quantize(NETWORK, config=name, fast=False, time=False)
            needs = False
        except ValueError as error:
            needs = "need ranges" in str(error)
        assert found[name].needs_data == needs, name
    assert found["BF16_MIXED_BFP16"].layers == "bfp16"


def test_listings_are_tables() -> None:
    targets = onnx_narrow.targets()
    assert [*targets] == [*TARGETS]
    lines = repr(targets).splitlines()
    assert lines[0].split() == ["name", "preset", "activations", "weights", "rules"]
    assert lines[1].split() == ["ort-cpu", "U8S8", "uint8,", "int8", "int8,", "uint8"]
    assert "<th>name</th>" in targets._repr_html_() and "<td" in onnx_narrow.formats()._repr_html_()
    assert repr(onnx_narrow.formats()["mxint8"]).startswith("FormatRow(bits=8.25, block=32, ")
