"""Oracle: ONNX Runtime called by hand on the same arrays, and images worked out with Pillow and NumPy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tests.helpers import build, corpus
from tests.helpers.time_lines import BESIDE_FLOAT
from tools import evaluate, infer
from transforms.run.array_files import read_array

FLOAT = TensorProto.FLOAT
SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
RNG = np.random.default_rng(5)


class Scene:
    """A folder with a model, samples and a place for results."""

    def __init__(self, root: Path) -> None:
        self.model, self.data, self.results = root / "m.onnx", root / "data", root / "results"
        self.data.mkdir()

    def save_model(self, nodes: list, inputs: dict, outputs: dict) -> None:
        ends = [
            [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in some.items()]
            for some in (inputs, outputs)
        ]
        graph = helper.make_graph(nodes, "g", *ends)
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), self.model
        )

    def save_copier(self, shape: list, kind: int = FLOAT) -> None:
        """A model that hands its input on."""
        self.save_model(
            [helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, shape)}, {"y": (kind, shape)}
        )

    def save_npy(self, **arrays: np.ndarray) -> None:
        for name, array in arrays.items():
            np.save(self.data / f"{name}.npy", array)

    def infer(self, *options: str) -> int:
        paths = ("--model", self.model, "--data", self.data, "--output_dir", self.results)
        return infer.main([*map(str, paths), *options])

    def result(self, name: str) -> np.ndarray:
        return np.load(self.results / f"{name}.npy")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.startswith("tools.infer: error: "), text
    return text


def test_npy_samples(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_model(
        [helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["n", 3])}, {"y": (FLOAT, ["n", 3])}
    )
    arrays = {name: RNG.standard_normal((i + 1, 3)).astype(np.float32) for i, name in enumerate("ab")}
    scene.save_npy(**arrays)
    assert scene.infer() == 0
    assert all(np.array_equal(scene.result(name), -array) for name, array in arrays.items())
    text = capsys.readouterr().out
    assert "Ran 2 samples" in text and f"Results saved to '{scene.results}'." in text and "Casts" not in text
    assert sorted(path.name for path in scene.results.iterdir()) == ["a.npy", "b.npy"]


def test_npz_samples_and_several_outputs(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["sum:0"]), helper.make_node("Sub", ["a", "b"], ["sum/0"])]
    ends = {name: (FLOAT, [2]) for name in ("a", "b", "sum:0", "sum/0")}
    scene.save_model(nodes, {n: ends[n] for n in "ab"}, {n: ends[n] for n in ("sum:0", "sum/0")})
    a, b = np.float32([1, 2]), np.float32([3, 5])
    np.savez(scene.data / "0.NPZ", a=a, b=b)
    (scene.data / "0.NPZ.npz").rename(scene.data / "0.NPZ")
    assert scene.infer() == 0
    assert np.array_equal(scene.result("sum_0/0"), a + b) and np.array_equal(scene.result("sum_0_1/0"), a - b)
    assert "one folder for each of 2 outputs" in capsys.readouterr().out


LONG = "long" * 80


@pytest.mark.parametrize(
    "names",
    [
        (LONG, f"{LONG}x", f"{LONG}y"),
        ("a" * 255, "A" * 255, "a" * 256),
        (f"/{'model/layer.0/' * 30}out", f"/{'model/layer.0/' * 30}out_1"),
        ("a_2", "a", "A", "a_2_3"),
        (".", "..", "...", "output_1", "\n"),
        ("\u00e9" * 300, "\u00e8" * 300, "\u4e2d", "\u6587"),
        ("thumbs.db", "Thumbs.db", "desktop.ini", "__MACOSX", "x.npy", ".x.npy"),
        ("CON", "con", "a b", "a\tb", "a\\b", "a:b*?"),
    ],
    ids=["long", "case of long", "long paths", "numbers", "points", "unicode", "litter", "signs"],
)
def test_outputs_of_any_name_are_found_again(
    names: tuple[str, ...], scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: each output is its place times the input."""
    nodes = [
        helper.make_node("Constant", [], [f"c{i}"], value_floats=[float(i + 1)]) for i in range(len(names))
    ]
    nodes += [helper.make_node("Mul", ["x", f"c{i}"], [name]) for i, name in enumerate(names)]
    scene.save_model(nodes, {"x": (FLOAT, [1])}, {name: (FLOAT, [1]) for name in names})
    scene.save_npy(s=np.float32([1]))
    assert scene.infer() == 0
    found = sorted(np.load(path).item() for path in scene.results.glob("*/s.npy"))
    assert found == [i + 1 for i in range(len(names))]
    assert len({path.name.lower() for path in scene.results.iterdir()}) == len(names)
    first, scene.results = scene.results, scene.results.with_name("other")
    assert scene.infer() == 0
    folders = ["--baseline_results_folder", first, "--quantized_results_folder", scene.results]
    assert evaluate.main(list(map(str, folders))) == 0
    assert f"Files: {len(names)}, identical: {len(names)}" in capsys.readouterr().out


def test_bfloat16_model_says_that_it_is_widened(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    kind = TensorProto.BFLOAT16
    scene.save_model([helper.make_node("Neg", ["x"], ["y"])], {"x": (kind, [3])}, {"y": (kind, [3])})
    array = RNG.standard_normal(3).astype(np.float32)
    scene.save_npy(a=array)
    assert scene.infer() == 0
    assert np.array_equal(scene.result("a"), -array.astype(ml_dtypes.bfloat16).astype(np.float32))
    wanted = "No bfloat16 kernels here: 3 nodes and ends ran in float32 between Casts added in memory."
    assert wanted in capsys.readouterr().out


def test_limit_takes_the_first_in_natural_order(scene: Scene) -> None:
    scene.save_copier([1])
    scene.save_npy(**{str(i): np.float32([i]) for i in (1, 2, 10)})
    assert scene.infer("--limit", "2") == 0
    assert sorted(path.stem for path in scene.results.iterdir()) == ["1", "2"]


def test_threads_reach_the_session(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.save_copier([1])
    scene.save_npy(a=np.float32([1]))
    seen = []
    original = ort.InferenceSession

    def spy(model: object, options: ort.SessionOptions, **rest: object) -> ort.InferenceSession:
        seen.append((options.intra_op_num_threads, rest["providers"]))
        return original(model, options, **rest)

    monkeypatch.setattr(ort, "InferenceSession", spy)
    assert scene.infer("--threads", "1", "--provider", "CPUExecutionProvider") == 0
    assert seen == [(1, ["CPUExecutionProvider"])]


PICTURE = RNG.integers(0, 256, (6, 8, 3), np.uint8)


def save_picture(scene: Scene, name: str = "p.png") -> None:
    Image.fromarray(PICTURE).save(scene.data / name)


def test_image_in_nchw(scene: Scene) -> None:
    scene.save_copier([1, 3, 6, 8])
    save_picture(scene)
    assert scene.infer("--mean", "10,20,30", "--std", "2") == 0
    wanted = (PICTURE.astype(np.float32) - np.float32([10, 20, 30])) / np.float32(2)
    assert np.array_equal(scene.result("p"), wanted.transpose(2, 0, 1)[None])


@pytest.mark.parametrize("name", ["p.PNG", "p.bmp.png"])
def test_image_in_nhwc(scene: Scene, name: str) -> None:
    scene.save_copier(["n", 6, 8, 3])
    Image.fromarray(PICTURE).save(scene.data / name, "PNG")
    assert scene.infer("--std", "255") == 0
    assert np.array_equal(scene.result(Path(name).stem), PICTURE[None] / np.float32(255))


@pytest.mark.parametrize(("option", "size"), [((), (6, 8)), (("--image-size", "4x10"), (4, 10))])
def test_image_size(scene: Scene, option: tuple, size: tuple[int, int]) -> None:
    scene.save_copier([1, 3, "h", "w"])
    save_picture(scene)
    assert scene.infer(*option) == 0
    resized = Image.fromarray(PICTURE).resize(size[::-1], Image.Resampling.BILINEAR)
    assert np.array_equal(scene.result("p")[0], np.asarray(resized, np.float32).transpose(2, 0, 1))


def test_image_is_resized_to_a_fixed_input(scene: Scene) -> None:
    scene.save_copier([1, 3, 5, 5])
    save_picture(scene)
    assert scene.infer() == 0 and scene.result("p").shape == (1, 3, 5, 5)


def test_one_number_makes_a_square(scene: Scene) -> None:
    scene.save_copier([1, 3, "h", "w"])
    save_picture(scene)
    assert scene.infer("--image-size", "7") == 0 and scene.result("p").shape == (1, 3, 7, 7)


def test_layout_of_a_model_that_does_not_say(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier(["a", "b", "c", "d"])
    save_picture(scene)
    assert scene.infer() == 1
    assert "input 'x' of shape ['?', '?', '?', '?'] is not an image of 1, 3 or 4 channels" in error_of(capsys)
    assert scene.infer("--layout", "nhwc") == 0
    assert scene.result("p").shape == (1, 6, 8, 3)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (4, "RGBA")])
def test_channels_follow_from_the_model(scene: Scene, channels: int, mode: str) -> None:
    scene.save_copier([1, channels, 6, 8])
    save_picture(scene)
    assert scene.infer() == 0
    wanted = np.asarray(Image.fromarray(PICTURE).convert(mode), np.float32).reshape(6, 8, channels)
    assert np.array_equal(scene.result("p")[0], wanted.transpose(2, 0, 1))


def test_image_for_an_8_bit_input(scene: Scene) -> None:
    scene.save_copier([1, 6, 8, 3], TensorProto.UINT8)
    save_picture(scene)
    assert scene.infer() == 0 and np.array_equal(scene.result("p")[0], PICTURE)


def test_wrong_number_of_means(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier([1, 3, 6, 8])
    save_picture(scene)
    assert scene.infer("--mean", "1,2") == 1
    assert "2 numbers of mean for the 3 channels of 'x'" in error_of(capsys)


@pytest.mark.parametrize(
    "option",
    [
        ("--std", "0"),
        ("--mean", "nan"),
        ("--limit", "0"),
        ("--image-size", "0x4"),
        ("--layout", "chw"),
        ("--thread", "1"),
    ],
)
def test_usage_errors(scene: Scene, option: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as stop:
        scene.infer(*option)
    assert stop.value.code == 2


def test_wrong_type_shape_and_name(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier([2])
    for array, message in (
        (np.full(2, 1e300), "sample 'a.npy', input 'x': type float64 instead of float32"),
        (np.zeros(3, np.float32), "sample 'a.npy', input 'x': shape [3] instead of [2]"),
    ):
        scene.save_npy(a=array)
        assert scene.infer("--force") == 1
        assert message in error_of(capsys)
    (scene.data / "a.npy").unlink()
    np.savez(scene.data / "a.npz", z=np.zeros(2, np.float32))
    assert scene.infer() == 1
    assert "sample 'a.npz': 'z' is not an input of the model, which has 'x'" in error_of(capsys)


def test_npy_for_a_model_of_two_inputs(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    ends = {name: (FLOAT, [2]) for name in "aby"}
    scene.save_model(
        [helper.make_node("Add", ["a", "b"], ["y"])], {n: ends[n] for n in "ab"}, {"y": ends["y"]}
    )
    scene.save_npy(s=np.zeros(2, np.float32))
    assert scene.infer() == 1
    assert "sample 's.npy': the model has inputs 'a', 'b', which takes a .npz file" in error_of(capsys)


def test_empty_and_missing_data_folder(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier([2])
    assert scene.infer() == 1
    assert f"folder '{scene.data}' holds no .npz, .npy, .png or .jpg file" in error_of(capsys)
    scene.data.rmdir()
    assert scene.infer() == 1
    assert f"folder '{scene.data}' does not exist" in error_of(capsys)
    assert not scene.results.exists()


def test_two_samples_of_one_stem(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier([2])
    scene.save_npy(a=np.zeros(2, np.float32))
    np.savez(scene.data / "a.npz", x=np.zeros(2, np.float32))
    assert scene.infer() == 1
    assert "would have the same result file" in error_of(capsys)


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.png"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not an archive", b"\x80\x04."])
def test_unreadable_samples(
    scene: Scene, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.save_copier([1, 3, 6, 8])
    (scene.data / name).write_bytes(content)
    assert scene.infer() == 1
    said = error_of(capsys)
    assert f"{name}' cannot be read: " in said
    assert "pickle" not in said  # NumPy's advice would be of no use, and unsafe


def test_objects_in_npz_are_never_unpickled(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier([1])
    np.savez(scene.data / "a.npz", x=np.array([print], object))
    assert scene.infer() == 1
    assert "a.npz' cannot be read: Object arrays" in error_of(capsys)


def test_full_output_folder_needs_force(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier([1])
    scene.save_npy(a=np.float32([1]))
    assert scene.infer() == 0
    capsys.readouterr()
    scene.save_npy(a=np.float32([2]))
    assert scene.infer() == 1
    assert f"output folder '{scene.results}' is not empty; --force writes into it" in error_of(capsys)
    assert scene.result("a") == [1]
    assert scene.infer("--force") == 0 and scene.result("a") == [2]


def test_output_dir_that_can_not_be(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_copier([1])
    scene.results.write_text("a file")
    assert scene.infer() == 1
    assert "is a file, not a folder" in error_of(capsys)
    scene.results = scene.data / "none" / "results"
    assert scene.infer() == 1
    assert "does not exist" in error_of(capsys)


def test_results_that_can_not_be_written_are_noticed_before_any_work(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.save_copier([1])
    scene.save_npy(a=np.float32([1]), b=np.float32([2]))
    scene.results.mkdir()
    os.mkfifo(scene.results / "b.npy")
    assert scene.infer("--force") == 1
    assert "b.npy' is a pipe, not a file" in error_of(capsys)
    assert [path.name for path in scene.results.iterdir()] == ["b.npy"]


def test_results_through_links(scene: Scene) -> None:
    scene.save_copier([1])
    scene.save_npy(a=np.float32([1]))
    far = scene.data.with_name("far")
    far.mkdir()
    scene.results.symlink_to(far)
    (far / "a.npy").symlink_to("real.npy")
    assert scene.infer("--force") == 0
    assert (far / "a.npy").is_symlink() and scene.results.is_symlink()
    assert np.load(far / "real.npy") == [1]


def test_results_in_a_folder_that_a_link_does_not_lead_to(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.save_copier([1])
    scene.save_npy(a=np.float32([1]))
    scene.results.symlink_to(scene.results.with_name("absent"))
    assert scene.infer() == 1
    assert "is a link to a folder that does not exist" in error_of(capsys)


def test_samples_are_never_overwritten(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.save_model([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])})
    scene.save_npy(a=np.float32([1]))
    scene.results = scene.data
    assert scene.infer("--force") == 1
    assert "never overwritten" in error_of(capsys)
    assert np.load(scene.data / "a.npy") == [1]


def test_litter_of_operating_systems_is_skipped_and_said(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.save_copier([1])
    scene.save_npy(a=np.float32([1]))
    for name in ("._a.npy", ".DS_Store", "Thumbs.db", "desktop.ini", "._b.PNG"):
        (scene.data / name).write_bytes(b"\0\5\x16\7")
    assert scene.infer() == 0
    said = f"Skipped in '{scene.data}': 5 files of operating systems, such as '.DS_Store'\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in scene.results.iterdir()] == ["a.npy"]


def test_missing_model_and_unknown_provider(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert scene.infer() == 1
    assert f"No such file or directory: '{scene.model}'" in error_of(capsys)
    scene.save_copier([1])
    assert scene.infer("--provider", "abacus") == 1
    assert "provider 'abacus' is not one of" in error_of(capsys)


def test_sequence_outputs_are_refused(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    sequence = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [1])],
        [sequence],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), scene.model
    )
    scene.save_npy(a=np.float32([1]))
    assert scene.infer() == 1
    assert "output 'y' of type seq(tensor(float)) cannot be saved" in error_of(capsys)


def test_help_starts_fast() -> None:
    code = (
        "import sys\nfrom tools import infer\ntry: infer.main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'onnx', 'onnxruntime', 'PIL', 'numpy', 'tqdm'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(infer.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.endswith("[]\n") and "--image-size" in done.stdout


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real models are not here")
def test_infer_and_evaluate_of_a_real_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MNIST: accuracy and agreement as counted by hand from a session of the float model."""
    folder = SHARED / "mnist_cntk"
    scene = Scene(tmp_path)
    scene.model = folder / "model.onnx"
    images = np.load(folder / "images_u8.npy")[:40].astype(np.float32).reshape(40, 1, 1, 28, 28)
    labels = np.load(folder / "labels.npy")[:40].astype(np.int64)
    scene.save_npy(**{str(i): image for i, image in enumerate(images)})
    assert scene.infer() == 0
    np.save(tmp_path / "labels.npy", labels)
    folders = [
        "--baseline_results_folder",
        str(scene.results),
        "--quantized_results_folder",
        str(scene.results),
    ]
    assert evaluate.main([*folders, "--top1", str(tmp_path / "labels.npy")]) == 0
    session = ort.InferenceSession(str(scene.model))
    name = session.get_inputs()[0].name
    wanted = np.mean(
        [session.run(None, {name: x})[0].argmax() == y for x, y in zip(images, labels, strict=True)]
    )
    text = capsys.readouterr().out
    assert f"Top1 baseline: {wanted:.6g}\n" in text and "Top1 agreement: 1 of 40 rows" in text
    assert len(read_array(scene.results / "0.npy").shape) == 2


@pytest.mark.heavy
def test_time_against_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure is there; which model is faster is the machine's business."""
    path, data = tmp_path / "m.onnx", tmp_path / "data"
    onnx.save(build.dense(4), path)
    data.mkdir()
    np.save(data / "0.npy", np.ones((3, 4), np.float32))
    arguments = [
        "--input",
        path,
        "--data",
        data,
        "--output",
        tmp_path / "r",
        "--time",
        path,
        "--threads",
        "1",
    ]
    assert infer.main([*map(str, arguments)]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^Time per sample: {BESIDE_FLOAT}, \d+ runs each$", out, re.M)


def test_time_against_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "data"
    onnx.save(build.dense(4), path)
    data.mkdir()
    np.save(data / "0.npy", np.ones((3, 4), np.float32))
    arguments = ["--input", path, "--data", data, "--output", tmp_path / "r", "--time", tmp_path / "no.onnx"]
    assert infer.main([*map(str, arguments)]) == 1
    assert "no.onnx" in capsys.readouterr().err


def test_only_the_outputs_that_are_named_are_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = "{ y = Relu(x) z = Neg(x) s = SequenceConstruct(y) }"
    onnx.save(
        corpus.parse(f"(float[N] x) => (float[N] y, float[N] z, seq(float[N]) s) {nodes}"),
        tmp_path / "m.onnx",
    )
    (tmp_path / "d").mkdir()
    np.save(tmp_path / "d" / "a.npy", np.ones(3, np.float32))
    given = f"--input {tmp_path}/m.onnx --data {tmp_path}/d --output {tmp_path}/r".split()
    assert infer.main([*given, "--output-names", "z"]) == 0
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["a.npy"]
    assert (np.load(tmp_path / "r" / "a.npy") == -1).all()
    assert infer.main([*given, "--force", "--output-names", "z", "yy"]) == 1
    assert "'yy'" in (error := capsys.readouterr().err) and "did you mean 'y'?" in error
