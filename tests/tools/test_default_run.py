"""What a user gets by default, with nothing replaced: the first run, its time, and layers placed by time.

Oracle: ONNX Runtime on the float file and on the written one; the scheme that the written one records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest

from onnx_narrow.summaries.running import LEAST
from tests.benchmarks.transformer import Size, transformer
from tests.examples.write_samples import IMAGES
from tests.helpers.pre_norm import LENGTH, WORDS, pre_norm
from tests.helpers.time_lines import BESIDE_FLOAT
from tools import quantize
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.options import Options
from transforms.pipelines.recipes import QUANTIZE
from transforms.pipelines.source import Source
from transforms.pipelines.steps import run
from transforms.pipelines.work import SCHEME_ENTRY, Work
from transforms.scheme.apply_target import scheme_of
from transforms.scheme.targets import ON_CPU, target

pytestmark = pytest.mark.timed

Feed = dict[str, Any]

TIME = re.compile(rf"^Time here: {BESIDE_FLOAT}$", re.MULTILINE)
PLACED = re.compile(r"^In float, for speed: (\d+) of (\d+) layers", re.MULTILINE)
LAYERS = ("Conv", "Gemm", "MatMul")


def pictures(count: int, size: int = 1) -> list[Feed]:
    taken = np.load(IMAGES)[: count * size]
    return [{"images": taken[i * size : (i + 1) * size]} for i in range(count)]


def words(count: int, _: int = 1) -> list[Feed]:
    random = np.random.default_rng(1)
    return [{"ids": random.integers(0, WORDS, (1, LENGTH))} for _ in range(count)]


def masked_words(count: int, size: int = 1) -> list[Feed]:
    """Return tokens of two sequences, 8 at the usual size."""
    random, shape = np.random.default_rng(2), (2, 7 + size)
    return [
        {"input_ids": random.integers(0, 100, shape), "attention_mask": np.ones(shape, np.int64)}
        for _ in range(count)
    ]


Feeds = Callable[..., list[Feed]]
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Feeds]] = {
    "convolutional": (lambda: onnx.load(IMAGES.with_name("digits.onnx")), pictures),
    "transformer": (lambda: pre_norm(layers=1), words),
    "free length": (lambda: transformer(Size(1, 32, 4, 100, 16)), masked_words),
}


@pytest.fixture(params=MODELS)
def named(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(named: str, tmp_path: Path) -> Path:
    """A folder with a float model and samples."""
    make, feeds = MODELS[named]
    onnx.save(make(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i, feed in enumerate(feeds(8)):
        np.savez(tmp_path / "data" / f"{i}.npz", **feed)
    return tmp_path


def quantized(folder: Path, *options: str) -> onnx.ModelProto:
    paths = [f"--{name}={folder / file}" for name, file in (("input", "m.onnx"), ("output", "q.onnx"))]
    assert quantize.main([*paths, f"--data={folder / 'data'}", "--force", *options]) == 0
    made = onnx.load(folder / "q.onnx")
    onnx.checker.check_model(made, full_check=True)
    return made


def decibels(folder: Path, feed: Feed) -> float:
    """Return the signal of the written file's first output against its error, as a user's session has it."""
    expected, got = (
        ort.InferenceSession(folder / name).run(None, feed)[0].astype(np.float64)
        for name in ("m.onnx", "q.onnx")
    )
    assert got.shape == expected.shape
    return float(10 * np.log10(np.sum(expected**2) / np.sum((expected - got) ** 2)))


def has_float_layer(made: onnx.ModelProto) -> bool:
    makers = {name: node.op_type for node in made.graph.node for name in node.output}
    layers = (node for node in made.graph.node if node.op_type in LAYERS)
    return any("DequantizeLinear" not in map(makers.get, node.input) for node in layers)


@pytest.mark.parametrize("options", [("--config", "A8W8"), ("--target", ON_CPU)], ids=["preset", "target"])
def test_the_file_runs_as_said_is_timed_and_is_made_again_by_its_scheme(
    options: tuple[str, ...], named: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = quantized(folder, *options)
    said = capsys.readouterr().out
    assert "Runs on ONNX Runtime CPU: yes. Operator library needed: none\n" in said, "at each size tried"
    assert f" -> {(folder / 'q.onnx').stat().st_size:,} bytes" in said
    assert "Warning" not in said
    for size in (1, 3):
        (feed,) = MODELS[named][1](1, size)
        assert decibels(folder, feed) >= LEAST, "or there is a warning"
    (line,) = TIME.findall(said)
    assert (" times slower than float" in line) == ("\nSlower: " in said)
    if placed := PLACED.search(said):
        assert int(placed[1]) < int(placed[2]) and has_float_layer(made)
    (scheme,) = (entry.value for entry in made.metadata_props if entry.key == SCHEME_ENTRY)
    (folder / "s.toml").write_text(scheme)
    assert quantized(folder, f"--config={folder / 's.toml'}").graph == made.graph


@pytest.mark.parametrize("named", ["convolutional"])
def test_each_layer_is_timed_for_the_machine_itself_and_so_is_the_file(named: str, folder: Path) -> None:
    samples, source = CalibrationData(MODELS[named][1](8)), Source(str(folder / "m.onnx"))
    scheme, options = scheme_of(target(ON_CPU)), Options(compares=True)
    work = run(Work(gs.Graph(), scheme, samples, source=source, options=options), QUANTIZE)
    placed, first = work.record.placed, work.record.first
    layers = [node for node in source.load().nodes if node.op in LAYERS]
    assert placed is not None and placed.count == len(layers) > len(placed.layers)
    assert first is not None and first.trial is not None and not first.not_run
    assert first.time is not None and 0 < first.time.ratio.low <= first.time.ratio.high
