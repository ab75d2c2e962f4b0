"""What a model, samples and a metric may be. Oracle: the same as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_narrow
from onnx_narrow.api.sources import samples_of
from tests.helpers import tunable
from transforms import model_io
from transforms.run.feeds import open_feeds
from transforms.runtime.inputs import model_inputs

NETWORK = tunable.conv_net()
INPUT = NETWORK.graph.input[0].name
INPUTS = model_inputs(model_io.load(NETWORK))
SAMPLES = tunable.samples(NETWORK, 4)


class Indexed:
    """A data set that has indices alone, as those of torch do."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return SAMPLES[index][INPUT], 0


class Reader:
    def __init__(self) -> None:
        self._left = list(SAMPLES)

    def get_next(self) -> Any:
        return self._left.pop(0)[INPUT] if self._left else None


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(NETWORK, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("data", [Indexed(), lambda: Reader(), Reader, (one for one in SAMPLES)])
def test_samples_are_read_once_and_kept(data: Any) -> None:
    """Twice the same numbers, also of what can be read once; oracle: the arrays themselves."""
    kept = samples_of(data)
    assert isinstance(kept, list) and len(kept) == 4
    for _ in range(2):
        arrays = [feed[INPUT] for _, feed in open_feeds(kept, INPUTS)]
        assert all(np.array_equal(array, one[INPUT]) for array, one in zip(arrays, SAMPLES, strict=True))


def test_a_generator_may_fill_one_array_again_and_again() -> None:
    buffer = np.zeros_like(SAMPLES[0][INPUT])

    def _filled() -> Iterator[np.ndarray]:
        for sample in SAMPLES:
            buffer[:] = sample[INPUT]
            yield buffer

    kept = list(open_feeds(samples_of(_filled()), INPUTS))
    assert all(np.array_equal(feed[INPUT], one[INPUT]) for (_, feed), one in zip(kept, SAMPLES, strict=True))


def test_samples_beyond_the_limit_are_kept_in_files() -> None:
    """Of 4 samples, 2 have room in memory; the numbers are the same."""
    kept = samples_of(list(SAMPLES), memory_limit=2 * SAMPLES[0][INPUT].nbytes)
    arrays = [sample[INPUT] for sample in kept if isinstance(sample, dict)]
    assert [isinstance(array, np.memmap) for array in arrays] == [False, False, True, True]
    assert all(np.array_equal(array, one[INPUT]) for array, one in zip(arrays, SAMPLES, strict=True))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: SAMPLES[0], "samples are a dict, which is one sample: give a list of them"),
        (3, "samples are a folder, a reader or an iterable, not int"),
        (lambda: None, "samples are a folder, a reader or an iterable, not NoneType"),
    ],
)
def test_what_is_no_samples_is_refused(data: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"^{words}$"):
        samples_of(data)


class Named:
    """A path that is neither a string nor of pathlib."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __fspath__(self) -> str:
        return self._path


@pytest.mark.parametrize("kind", [str, Path, Named])
def test_paths_of_any_kind(kind: Callable[[Path], Any], model: Path, tmp_path: Path) -> None:
    """Of models, samples, schemes, results and options."""
    data, scheme, output = tmp_path / "data", tmp_path / "s.toml", tmp_path / "q.onnx"
    data.mkdir()
    for i, sample in enumerate(SAMPLES):
        np.savez(data / f"{i}.npz", **sample)
    scheme.write_text('preset = "A8W8"\n', encoding="utf-8")
    given: dict[str, Any] = {"config": kind(scheme), "fast": True, "time": False}
    ranges = kind(tmp_path / "r.json")
    result = onnx_narrow.quantize(
        kind(model), kind(output), data=kind(data), export_ranges=ranges, force=True, **given
    )
    assert result.path == output and (tmp_path / "r.json").exists()
    assert onnx_narrow.inspect(kind(output)) and onnx_narrow.load(kind(output)).nodes
    assert onnx_narrow.save(result, kind(tmp_path / "p.onnx")) == [tmp_path / "p.onnx"]
    assert result.save(kind(tmp_path / "o.onnx")) == tmp_path / "o.onnx"
    found = onnx_narrow.evaluate(kind(model), kind(output), data=kind(data))
    assert found["mean"]["sqnr"] > 20
    assert onnx_narrow.convert_bf16(kind(model)).model
    if kind is not str:  # a string is a sample of text
        items = [kind(file) for file in sorted(data.iterdir())]
        assert onnx_narrow.quantize(kind(model), data=items, **given).model.graph == result.model.graph


@pytest.mark.parametrize("form", ["float64", "rows", "one array", "keys"])
def test_what_means_the_same_gives_the_same_model(form: str, model: Path) -> None:
    """Other widths, samples without a batch, all samples in one array, and a preset as a mapping."""
    arrays = [sample[INPUT] for sample in SAMPLES]
    data: dict[str, Any] = {
        "float64": [array.astype(np.float64) for array in arrays],
        "rows": [array[0] for array in arrays],
        "one array": np.concatenate(arrays),
        "keys": arrays,
    }
    config: Any = {"preset": "U8S8", "per_channel": False} if form == "keys" else "U8S8"
    given = {} if form == "keys" else {"per_channel": False}
    wanted = onnx_narrow.quantize(model, config="U8S8", data=arrays, per_channel=False, time=False)
    made = onnx_narrow.quantize(model, config=config, data=data[form], time=False, **given)
    assert made.model.graph == wanted.model.graph
    shape = list(arrays[0].shape[1:])
    batch = f"Samples: arrays for input '{INPUT}' taken as a batch of one"
    told = [line for line in made.notes if line.startswith("Samples: ")]
    assert told == {
        "float64": [f"Samples: arrays for input '{INPUT}' cast from float64 to float32"],
        "keys": [],
        "one array": [
            f"Samples: 4 along the first axis of the array: float32 {shape}",
            batch,
        ],
    }.get(form, [batch])


def test_a_reader_that_was_read_before_says_so(model: Path) -> None:
    reader = Reader()
    onnx_narrow.quantize(model, data=reader, fast=True)
    with pytest.raises(ValueError, match="hold no sample; a reader or generator can be read once"):
        onnx_narrow.quantize(model, data=reader, fast=True)


def test_a_sample_in_no_file(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.npz"):
        samples_of([tmp_path / "absent.npz"])
    with pytest.raises(ValueError, match=r"^sample 0: '.*m\.onnx' ends in none of \.npz, \.npy,"):
        samples_of([model])
    with pytest.raises(ValueError, match="ends in none of"):
        samples_of([model.parent])  # a folder of steps, without sequences


def test_no_sample_is_said_before_the_work(model: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    nothing: list[Any] = [[], iter(()), list, tmp_path / "data"]
    for data in nothing:
        with pytest.raises(ValueError, match=r"^the data hold no sample(; a reader or .*)?$|holds no \.npz"):
            onnx_narrow.quantize(model, tmp_path / "q.onnx", data=data)
    assert not (tmp_path / "q.onnx").exists()


def test_a_result_is_a_model(model: Path, tmp_path: Path) -> None:
    result = onnx_narrow.quantize(model, config="MX6")
    found = [onnx_narrow.inspect(one) for one in (result, result.model)]
    assert found[0] == found[1] and found[0]["file"] == "model in memory"
    assert onnx_narrow.save(result, tmp_path / "q.onnx") == [tmp_path / "q.onnx"]
    assert onnx_narrow.save(result.model, tmp_path / "p.onnx") == [tmp_path / "p.onnx"]
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "p.onnx").read_bytes()


METRIC = """
import numpy

def evaluate(outputs):
    return -float(numpy.mean([abs(array).mean() for one in outputs for array in one.values()]))
"""


def test_a_metric_may_be_a_function(model: Path, tmp_path: Path) -> None:
    calls = []

    def metric(outputs: Sequence[dict[str, np.ndarray]]) -> float:
        calls.append(len(outputs))
        return -float(np.mean([abs(array).mean() for one in outputs for array in one.values()]))

    (tmp_path / "metric.py").write_text(METRIC, encoding="utf-8")
    given: dict[str, Any] = {"config": "S16S8_MIXED_S8S8", "data": SAMPLES, "evaluate_target": 0.05}
    named = onnx_narrow.mix_precision(model, evaluate=f"{tmp_path / 'metric.py'}:evaluate", **given)
    found = onnx_narrow.mix_precision(model, evaluate=metric, **given)
    assert calls and set(calls) == {len(SAMPLES)}
    assert found.model.graph == named.model.graph
    assert not any("onnx_narrow_" in entry.value for entry in found.model.metadata_props)
    with pytest.raises(ValueError, match="other processes do not have"):
        onnx_narrow.mix_precision(model, evaluate=metric, jobs=2, **given)
