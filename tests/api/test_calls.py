"""The functions of ``onnx_narrow``. Oracle: the commands, whose files they make bit for bit."""

from __future__ import annotations

import doctest
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_narrow
import ops
from onnx_narrow import __main__ as command
from tests.helpers import tunable
from tests.helpers.spread import spread
from tools import auto_mixed_precision, convert_fp32_to_bf16, finetune, quantize
from transforms import model_io
from transforms.scheme.presets import PRESETS

NETWORK = tunable.conv_net()
INPUT = NETWORK.graph.input[0].name
SAMPLES = tunable.samples(NETWORK, 8)
ROOT = Path(__file__).parents[2]
USUAL = ["A8W8", "W4A8", "BF16", "MX6", "A8W8_ADAQUANT", "BF16_MIXED_BFP16"]


class Reader:
    """A calibration reader as ONNX Runtime's users write them."""

    def __init__(self) -> None:
        self._left = iter(SAMPLES)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


class Tensor:
    """What asks to be detached and moved before it is an array."""

    def __init__(self, array: np.ndarray, *, is_free: bool = False) -> None:
        self._array, self._is_free = array, is_free

    def detach(self) -> Tensor:
        return Tensor(self._array, is_free=True)

    def numpy(self) -> np.ndarray:
        assert self._is_free
        return self._array


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(NETWORK, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i, sample in enumerate(SAMPLES):
        np.savez(tmp_path / "data" / f"{i:06d}.npz", **sample)
    return tmp_path


def _command(tool: Any, folder: Path, *options: object) -> bytes:
    path = folder / "command.onnx"
    given = ["--input", folder / "m.onnx", "--output", path, "--data", folder / "data", *options]
    assert tool.main(list(map(str, given))) == 0
    return path.read_bytes()


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(one, marks=[] if one in USUAL else [pytest.mark.heavy])
        for one in (*PRESETS, "A8W8_ADAQUANT")
        if one not in ("FOUND", "A8W8_DYNAMIC")  # weights are on no grid, and layers are small
    ],
)
def test_a_call_makes_the_file_of_the_command(config: str, folder: Path) -> None:
    is_tested = onnx_narrow.preset(config).auto_mixed_precision is None
    made = folder / "call.onnx"
    if is_tested:
        onnx_narrow.quantize(folder / "m.onnx", made, config=config, data=SAMPLES)
        assert made.read_bytes() == _command(quantize, folder, "--config", config)
    else:
        onnx_narrow.mix_precision(folder / "m.onnx", made, config=config, data=SAMPLES)
        assert made.read_bytes() == _command(auto_mixed_precision, folder, "--config", config)


def test_conversion_and_tuning_make_the_files_of_the_commands(folder: Path) -> None:
    made, tuned = folder / "call.onnx", folder / "tuned.onnx"
    onnx_narrow.convert_bf16(folder / "m.onnx", made, format="bf16")
    given = ["--input", folder / "m.onnx", "--output", folder / "command.onnx", "--format", "bf16"]
    assert convert_fp32_to_bf16.main(list(map(str, given))) == 0
    assert made.read_bytes() == (folder / "command.onnx").read_bytes()
    onnx_narrow.quantize(folder / "m.onnx", made, config="MX6", force=True)
    onnx_narrow.finetune(folder / "m.onnx", made, tuned, data=folder / "data")
    given = ["--float", folder / "m.onnx", "--quantized", made, "--output", folder / "command2.onnx"]
    assert finetune.main([*map(str, given), "--data", str(folder / "data")]) == 0
    assert tuned.read_bytes() == (folder / "command2.onnx").read_bytes()


class ReaderWithEmptyEnd(Reader):
    """Some end with an empty dict in place of None."""

    def get_next(self) -> dict[str, np.ndarray]:
        return super().get_next() or {}


FORMS: dict[str, Callable[[], Any]] = {
    "reader": Reader,
    "reader with an empty end": ReaderWithEmptyEnd,
    "dicts": lambda: SAMPLES,
    "generator": lambda: iter(SAMPLES),
    "callable": lambda: lambda: iter(SAMPLES),
    "arrays": lambda: [sample[INPUT] for sample in SAMPLES],
    "pairs with labels": lambda: [(sample[INPUT], np.array([0])) for sample in SAMPLES],
    "tensors": lambda: [Tensor(sample[INPUT]) for sample in SAMPLES],
}


@pytest.mark.parametrize("form", spread(FORMS, of=2))
def test_samples_of_every_form_are_the_same_samples(form: str, folder: Path) -> None:
    wanted = onnx_narrow.quantize(folder / "m.onnx", data=folder / "data").model
    assert onnx_narrow.quantize(folder / "m.onnx", data=FORMS[form]()).model == wanted


@pytest.mark.parametrize("form", ["path", "proto", "graph"])
def test_models_of_every_form_give_the_same_graph(form: str, folder: Path) -> None:
    path = str(folder / "m.onnx")
    model = {"path": path, "proto": onnx.load(path), "graph": onnx_narrow.load(path)}[form]
    before = onnx.load(path)
    wanted = onnx_narrow.quantize(folder / "m.onnx", data=SAMPLES).model.graph
    assert onnx_narrow.quantize(model, data=SAMPLES).model.graph == wanted
    if isinstance(model, onnx.ModelProto):
        assert model == before


def test_without_an_output_nothing_is_written(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    result = onnx_narrow.quantize(folder / "m.onnx", data=SAMPLES)
    assert sorted(folder.rglob("*")) == before and result.path is None
    assert not any("written to" in line for line in result.notes)
    onnx.checker.check_model(result.model, full_check=True)
    with pytest.raises(FileExistsError, match=r"m\.onnx"):
        result.save(folder / "m.onnx")
    assert model_io.load(result.save(folder / "saved.onnx")).nodes


def test_a_result_says_what_was_done(folder: Path) -> None:
    result = onnx_narrow.quantize(folder / "m.onnx", folder / "q.onnx", config="U8S8", data=SAMPLES)
    assert result.path == folder / "q.onnx" and result.scheme is not None
    assert result.converted["uint8 activation"] > 0 and result.sqnr is not None and result.sqnr > 20
    assert any(one.kept for one in result.decided) or result.decided
    assert repr(result).startswith(f"<onnx_narrow.Result '{folder / 'q.onnx'}'>\n")
    assert "<table>" in result._repr_html_()
    again = onnx_narrow.quantize(folder / "m.onnx", config=result.scheme, data=SAMPLES, fast=True)
    assert again.model.graph == result.model.graph


def test_keywords_are_the_options_of_the_command(folder: Path) -> None:
    changes = {"percentile": 99.9, "calibrate_method": "Percentile"}
    result = onnx_narrow.quantize(folder / "m.onnx", data=SAMPLES, assignments=changes, limit=4)
    assert result.scheme is not None and result.scheme.percentile == 99.9


WRONG: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "unexpected keyword argument 'exclude_node'", {"exclude_node": ["x"]}),
    (TypeError, r"^limit is 'x', not a whole number from 1 to \d+$", {"data": SAMPLES, "limit": "x"}),
    (ValueError, r"^limit is 0, not a whole number from 1 to \d+$", {"data": SAMPLES, "limit": 0}),
    (TypeError, "^config is 3, not a preset, a path, a Scheme or a mapping of its keys$", {"config": 3}),
    (TypeError, "^samples are a folder, a reader or an iterable, not int$", {"data": 3}),
    (TypeError, "^fast is 1, not True or False$", {"data": SAMPLES, "fast": 1}),
    (
        ValueError,
        "^embeddings is 'int9', not 'int8' or 'int4' or 'float', did you",
        {"embeddings": "int9"},
    ),
    (TypeError, "^embeddings is 8, not 'int8' or 'int4' or 'float'$", {"embeddings": 8}),
    (TypeError, "^exclude_nodes is 7, not a list of strings$", {"exclude_nodes": 7}),
    (ValueError, "^random_data and data cannot be combined$", {"data": SAMPLES, "random_data": 2}),
    (ValueError, "^fast and steps cannot be combined$", {"data": SAMPLES, "fast": True, "steps": ()}),
    (ValueError, "^min_sqnr requires data, without fast", {"min_sqnr": 30}),
    (ValueError, "^fallback requires min_sqnr, top1 or metric$", {"data": SAMPLES, "fallback": "bf16"}),
    (ValueError, "^per_channel=False requires integers", {"config": "BF16", "per_channel": False}),
    (
        ValueError,
        r"^matmul_nbits requires integers in blocks \(assignments='block_size=32'\)",
        {"config": "W8", "matmul_nbits": True},
    ),
    (
        ValueError,
        "^fallback is 'int9', not 'float32' or ",
        {"data": [], "min_sqnr": 3, "fallback": "int9"},
    ),
    (ValueError, "^7 tensors need ranges.*: give data, or random_data for an experiment$", {}),
]


@pytest.mark.parametrize(("error", "words", "given"), WRONG)
def test_errors_name_keywords(
    error: type[Exception], words: str, given: dict[str, Any], folder: Path
) -> None:
    with pytest.raises(error, match=words):
        onnx_narrow.quantize(folder / "m.onnx", **given)


def test_a_model_of_no_known_kind_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^a model is a path, a ModelProto, a Graph or a Result, not int$"):
        onnx_narrow.quantize(3)  # type: ignore[arg-type]


def test_no_command_line_is_imported(folder: Path) -> None:
    code = (
        "import sys, numpy, onnx_narrow\n"
        f"samples = [numpy.load('data/00000{{}}.npz'.format(i))[{INPUT!r}] for i in range(4)]\n"
        "onnx_narrow.quantize('m.onnx', config='A8W8', data=samples)\n"
        "onnx_narrow.convert_bf16('m.onnx', data=samples, min_sqnr=20)\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('tools', 'argparse')])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert "tools" not in done.stdout


def test_progress_is_that_of_the_phases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, int, int | None]] = []
    onnx_narrow.quantize(folder / "m.onnx", data=SAMPLES, progress=lambda *one: seen.append(one))
    assert ("calibrating", 8, 8) in seen and seen[-1][0] == "writing"
    assert capsys.readouterr() == ("", "")


def test_models_are_compared(folder: Path) -> None:
    result = onnx_narrow.quantize(folder / "m.onnx", data=SAMPLES)
    largest = {"largest": lambda one, two: float(np.abs(one - two).max())}
    found = onnx_narrow.evaluate(folder / "m.onnx", result.model, data=SAMPLES, metrics=largest)
    assert found["mean"]["sqnr"] > 20 and 0 < found["metrics"]["largest"] < 1
    rows = onnx_narrow.report(folder / "m.onnx", result.model, folder / "r.html", data=SAMPLES)
    assert (folder / "r.html").exists() and {"layer", "own_db", "share"} <= rows[0].keys()
    assert onnx_narrow.inspect(result.model)["runs"]["CPU"]
    assert onnx_narrow.check(folder / "m.onnx", "ort-cpu")[0].startswith("nothing is quantized")


def test_saving_refuses_an_existing_file(folder: Path) -> None:
    graph = onnx_narrow.load(folder / "m.onnx")
    with pytest.raises(FileExistsError):
        onnx_narrow.save(graph, folder / "m.onnx")
    assert onnx_narrow.save(graph, folder / "n.onnx") == [folder / "n.onnx"]


def test_the_command_says_its_version_and_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    version = onnx_narrow.__version__
    assert command.main(["--version"]) == 0 and capsys.readouterr().out == f"onnx-narrow {version}\n"
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in cited
    assert command.main(["qantize"]) == 2 and "'qantize'" in capsys.readouterr().err
    words = ["convert-fp32-to-bf16", "--input", "none.onnx", "--output", "b.onnx"]
    done = subprocess.run(
        [sys.executable, "-m", "onnx_narrow", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1 and "'none.onnx'" in done.stderr


def test_all_public_names_are_there() -> None:
    assert {*onnx_narrow.__all__, "__version__"} <= set(dir(onnx_narrow))
    for name in onnx_narrow.__all__:
        assert getattr(onnx_narrow, name).__doc__
    assert onnx_narrow.ops is ops
    with pytest.raises(AttributeError, match="'quantise'"):
        onnx_narrow.quantise  # noqa: B018


@pytest.mark.parametrize("name", ["ops", "ops.formats", "transforms.insert_cast", "tools.quantize"])
def test_both_names_are_one_module(name: str) -> None:
    assert importlib.import_module(f"onnx_narrow.{name}") is importlib.import_module(name)


WITH_EXAMPLES = ("check", "convert_bf16", "evaluate", "infer", "inspect", "listing", "models", "quantize")


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_print_what_they_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    done = doctest.testmod(importlib.import_module(f"onnx_narrow.api.{name}"))
    assert done.attempted and not done.failed


def test_importing_is_quick() -> None:
    """Nothing of what functions need is imported before they are: at most 50 ms, which no NumPy fits into."""
    code = (
        "import sys, onnx_narrow; print(*(name for name in ('numpy', 'onnx', 'ops') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_another_package_of_the_same_name_is_found_and_named(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("", encoding="utf-8")
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    for words in (["-c", "import onnx_narrow"], ["-m", "tools.quantize", "--help"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 1 and f"'{tmp_path / 'ops.py'}'" in done.stderr.splitlines()[-1]
