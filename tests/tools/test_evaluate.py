"""Oracles: NumPy and scikit-image called by hand on the same arrays, and the lines that scripts look for."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.metrics import structural_similarity

from tools import evaluate
from transforms.compare import compare_results
from transforms.compare.compare_results import compare, pair_files
from transforms.run.array_files import find_files, natural_order, read_array

RNG = np.random.default_rng(3)
LINES = [
    "Mean cos similarity: ",
    "Min cos similarity: ",
    "Mean l2 distance: ",
    "Max l2 distance: ",
    "Mean psnr: ",
    "Min psnr: ",
    "Mean ssim: ",
    "Min ssim: ",
    "Mean sqnr: ",
    "Min sqnr: ",
]


class Folders:
    """A baseline and a quantized folder to fill."""

    def __init__(self, root: Path) -> None:
        self.baseline, self.quantized = root / "baseline", root / "quantized"
        self.baseline.mkdir()
        self.quantized.mkdir()

    def save(self, name: str, x: np.ndarray, y: np.ndarray) -> None:
        for folder, array in ((self.baseline, x), (self.quantized, y)):
            (folder / name).parent.mkdir(exist_ok=True)
            np.save(folder / name, array)

    def evaluate(self, *options: str | Path) -> int:
        folders = ["--baseline_results_folder", self.baseline, "--quantized_results_folder", self.quantized]
        return evaluate.main([str(option) for option in (*folders, *options)])


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture
def three(folders: Folders) -> tuple[Folders, list[np.ndarray], list[np.ndarray]]:
    """Three pairs of vectors with growing errors."""
    xs = [RNG.standard_normal((1, 10)).astype(np.float32) for _ in range(3)]
    ys = [x + 10.0 ** (i - 4) for i, x in enumerate(xs)]
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        folders.save(f"{i}.npy", x, y)
    return folders, xs, ys


def summary(text: str) -> dict[str, str]:
    return dict(re.findall(r"^((?:Mean|Min|Max) [a-z0-9 ]+): (.*)$", text, re.M))


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.startswith("tools.evaluate: error: "), text
    return text


def test_names_and_order_of_the_lines(three: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    assert three[0].evaluate() == 0
    printed = capsys.readouterr().out.splitlines()
    found = [line for line in printed if line.startswith(("Mean", "Min", "Max"))]
    assert [line[: line.index(": ") + 2] for line in found] == LINES


def test_values_of_the_lines(three: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    folders, xs, ys = three
    folders.evaluate()
    found = {
        name: float(text) for name, text in summary(capsys.readouterr().out).items() if "ssim" not in name
    }
    pairs = [(x.astype(float).ravel(), y.astype(float).ravel()) for x, y in zip(xs, ys, strict=True)]
    cosines = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in pairs]
    lengths = [np.linalg.norm(x - y) for x, y in pairs]
    psnrs = [20 * np.log10(np.abs(x).max()) - 10 * np.log10(np.mean((x - y) ** 2)) for x, y in pairs]
    sqnrs = [10 * np.log10(np.sum(x * x) / np.sum((x - y) ** 2)) for x, y in pairs]
    wanted = {"Mean cos similarity": np.mean(cosines), "Min cos similarity": min(cosines)}
    wanted |= {"Mean l2 distance": np.mean(lengths), "Max l2 distance": max(lengths)}
    wanted |= {"Mean psnr": np.mean(psnrs), "Min psnr": min(psnrs)}
    wanted |= {"Mean sqnr": np.mean(sqnrs), "Min sqnr": min(sqnrs)}
    assert found == pytest.approx(wanted, rel=1e-8)  # nine digits are printed


def test_ssim_is_left_out_with_a_word(three: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    three[0].evaluate()
    found = summary(capsys.readouterr().out)
    assert found["Mean ssim"] == "left out (shape [1, 10] is smaller than the window of 7)"


def test_ssim_of_a_baseline_of_zeros(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save("0.npy", np.zeros((9, 9)), np.ones((9, 9)))
    assert folders.evaluate() == 0
    found = summary(capsys.readouterr().out)
    assert found["Min ssim"] == "left out (the baseline is zero throughout and has no data range)"


def test_ssim_without_scikit_image(
    folders: Folders, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.save("0.npy", np.eye(9), np.eye(9) + 0.1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert folders.evaluate() == 0
    wanted = "left out (needs scikit-image: pip install 'onnx-narrow[evaluate]')"
    assert summary(capsys.readouterr().out)["Mean ssim"] == wanted


def test_images_of_any_letter_case(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    picture = RNG.integers(0, 256, (24, 30, 3), np.uint8)
    noisy = (picture // 16 * 16).astype(np.uint8)
    for name in ("a.PNG", "b.png", "c.Npy"):
        for folder, array in ((folders.baseline, picture), (folders.quantized, noisy)):
            if name.endswith("Npy"):
                np.save((folder / name).open("wb"), array)
            else:
                Image.fromarray(array).save(folder / name, "PNG")
    assert folders.evaluate() == 0
    found = summary(capsys.readouterr().out)
    wanted = structural_similarity(picture, noisy, channel_axis=2, data_range=255)
    mse = np.mean((picture.astype(float) - noisy) ** 2)
    assert float(found["Mean ssim"]) == pytest.approx(wanted, rel=1e-6)
    assert float(found["Min psnr"]) == pytest.approx(20 * np.log10(255) - 10 * np.log10(mse), rel=1e-6)


@pytest.mark.parametrize("suffix", ["jpg", "JPEG", "Jpg"])
def test_jpeg(folders: Folders, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    picture = Image.fromarray(RNG.integers(0, 256, (16, 16, 3), np.uint8))
    for folder, quality in ((folders.baseline, 95), (folders.quantized, 20)):
        picture.save(folder / f"0.{suffix}", "JPEG", quality=quality)
    assert folders.evaluate() == 0
    assert 5 < float(summary(capsys.readouterr().out)["Mean psnr"]) < 50


def test_suffixes_may_differ_in_case_between_the_folders(folders: Folders) -> None:
    np.save((folders.baseline / "a.NPY").open("wb"), np.ones(3))
    np.save(folders.quantized / "a.npy", np.ones(3))
    assert folders.evaluate() == 0


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3, 4, 5), (1, 2, 1, 2, 1, 2)])
def test_any_rank(folders: Folders, shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape)
    folders.save("0.npy", x, x + 0.5)
    assert folders.evaluate() == 0


def test_identical_inputs_give_inf(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save("0.npy", np.ones(4), np.ones(4))
    folders.save("1.npy", np.ones(4), np.full(4, 1.1))
    assert folders.evaluate() == 0
    text = capsys.readouterr().out
    found = summary(text)
    assert (found["Mean psnr"], found["Mean sqnr"]) == ("inf", "inf")
    assert float(found["Min sqnr"]) == pytest.approx(20)
    assert "Files: 2, identical: 1" in text


def test_opposite_infinities_do_not_crash_the_mean(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.save("0.npy", np.zeros(4), np.ones(4))
    folders.save("1.npy", np.zeros(4), np.zeros(4))
    assert folders.evaluate() == 0
    assert summary(capsys.readouterr().out)["Min sqnr"] == "-inf"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_is_counted_and_does_not_spread(
    folders: Folders, bad: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.save("0.npy", np.ones(4), np.full(4, 1.1))
    folders.save("1.npy", np.ones(4), np.array([1, bad, bad, 1]))
    report = tmp_path / "r.json"
    assert folders.evaluate("--json", report) == 1
    captured = capsys.readouterr()
    assert float(summary(captured.out)["Mean sqnr"]) == pytest.approx(20)
    assert "in 1 of 2 files, first '1.npy': 0 in the baseline, 2 in the quantized results" in captured.err
    written = json.loads(report.read_text())
    assert written["non_finite_files"] == 1 and written["per_file"][1]["sqnr"] is None


def test_only_nan(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save("0.npy", np.full(4, math.nan), np.ones(4))
    assert folders.evaluate() == 1
    assert summary(capsys.readouterr().out)["Mean psnr"] == "left out (NaN or infinite elements)"


@pytest.mark.parametrize("peak", ["1", "255"])
def test_peak(folders: Folders, peak: str, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save("0.npy", np.full(4, 10.0), np.full(4, 10.5))
    folders.evaluate("--peak", peak)
    wanted = 20 * math.log10(float(peak) / 0.5)
    assert float(summary(capsys.readouterr().out)["Mean psnr"]) == pytest.approx(wanted)


@pytest.mark.parametrize("peak", ["0", "-1", "nan", "inf", "much"])
def test_peak_must_be_positive(three: tuple, peak: str) -> None:
    with pytest.raises(SystemExit) as stop:
        three[0].evaluate(f"--peak={peak}")
    assert stop.value.code == 2


def test_outputs_are_compared_one_by_one(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(2):
        folders.save(f"boxes/{i}.npy", np.ones(4), np.full(4, 1.1))
        folders.save(f"scores/{i}.npy", np.ones(4), np.full(4, 1.01))
    report = tmp_path / "r.json"
    assert folders.evaluate("--json", report) == 0
    outputs = json.loads(report.read_text())["outputs"]
    means = {name: figures["mean"]["sqnr"] for name, figures in outputs.items()}
    assert means == pytest.approx({"boxes": 20, "scores": 40})
    text = capsys.readouterr().out
    assert re.search(r"^  boxes .*sqnr 20$", text, re.M) and "scores/1.npy" in text


def test_many_files_show_the_worst(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(25):
        folders.save(f"{i}.npy", np.ones(4), np.full(4, 1 + 1e-3 * (i + 1)))
    folders.evaluate()
    text = capsys.readouterr().out
    assert "The 20 files of lowest sqnr, of 25" in text and "\n24.npy" in text and "\n4.npy" not in text


def test_json(three: tuple, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    assert three[0].evaluate("--json", report) == 0
    written = json.loads(report.read_text())
    assert [one["name"] for one in written["per_file"]] == ["0.npy", "1.npy", "2.npy"]
    assert written["worst"]["sqnr"] == min(one["sqnr"] for one in written["per_file"])
    assert written["mean"]["ssim"] is None and written["per_file"][0]["shape"] == [1, 10]


def test_json_of_inf_is_strict(folders: Folders, tmp_path: Path) -> None:
    folders.save("0.npy", np.ones(4), np.ones(4))
    report = tmp_path / "r.json"
    folders.evaluate("--json", report)
    written = json.loads(report.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert written["mean"]["psnr"] == "inf"


def test_csv(three: tuple, tmp_path: Path) -> None:
    table = tmp_path / "r.csv"
    assert three[0].evaluate("--csv", table) == 0
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    x, y = three[1][2].astype(float), three[2][2].astype(float)
    assert [row["file"] for row in rows] == ["0.npy", "1.npy", "2.npy"]
    assert float(rows[2]["l2"]) == pytest.approx(np.linalg.norm(x - y)) and rows[2]["shape"] == "1x10"


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_no_overwriting_without_force(
    three: tuple, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "old"
    target.write_text("old")
    assert three[0].evaluate(option, target) == 1
    assert "exists; --force overwrites it" in error_of(capsys) and target.read_text() == "old"
    assert three[0].evaluate(option, target, "--force") == 0
    assert target.read_text() != "old"


def test_report_folder_is_checked_before_any_work(three: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    assert three[0].evaluate("--json", "/nowhere/r.json") == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "folder '/nowhere' does not exist" in captured.err


def test_top1(folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = np.eye(4, dtype=np.float32)
    folders.save("0.npy", scores[:1], scores[:1])
    folders.save("1.npy", scores[1:3], scores[[1, 3]])
    folders.save("10.npy", scores[3], scores[3])  # natural order: after 1
    np.save(tmp_path / "labels.npy", [0, 1, 3, 3])
    assert folders.evaluate("--top1", tmp_path / "labels.npy") == 0
    text = capsys.readouterr().out
    assert "Top1 baseline: 0.75\nTop1 quantized: 1\nTop1 agreement: 0.75 of 4 rows" in text


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "2 labels for 3 rows of results"),
        ([[0, 1, 2]], "labels must be integers of shape [n], not int64 [1, 3]"),
        ([0.5, 1.0, 2.0], "labels must be integers of shape [n], not float64 [3]"),
    ],
)
def test_top1_with_wrong_labels(
    three: tuple, tmp_path: Path, labels: list, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "labels.npy", labels)
    assert three[0].evaluate("--top1", tmp_path / "labels.npy") == 1
    assert message in error_of(capsys)


def test_top1_of_several_outputs(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in ("a", "b"):
        folders.save(f"{output}/0.npy", np.ones((1, 3)), np.ones((1, 3)))
    np.save(tmp_path / "labels.npy", [0])
    assert folders.evaluate("--top1", tmp_path / "labels.npy") == 1
    assert "top-1 needs one output, the folders hold 2: a, b" in error_of(capsys)


def test_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "none")
    arguments = ["--baseline_results_folder", folder, "--quantized_results_folder", folder]
    assert evaluate.main(arguments) == 1
    assert f"folder '{folder}' does not exist" in error_of(capsys)


def test_empty_folder(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    (folders.baseline / "notes.txt").write_text("no result")
    assert folders.evaluate() == 1
    assert f"folder '{folders.baseline}' holds no .npy, .png or .jpg file" in error_of(capsys)


def test_different_names(three: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    folders = three[0]
    for i in range(3, 9):
        np.save(folders.baseline / f"{i}.npy", np.ones(2))
    assert folders.evaluate() == 1
    message = error_of(capsys)
    assert f"only in '{folders.baseline}': 3.npy, 4.npy, 5.npy and 3 more" in message
    assert "--allow-missing" in message
    assert folders.evaluate("--allow-missing") == 0
    assert "Files: 3," in capsys.readouterr().out


def test_nothing_in_common(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folders.baseline / "a.npy", np.ones(2))
    np.save(folders.quantized / "b.npy", np.ones(2))
    assert folders.evaluate("--allow-missing") == 1
    assert "no file name is common" in error_of(capsys)


def test_shape_mismatch_names_file_and_shapes(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save("ok.npy", np.ones(2), np.ones(2))
    folders.save("x.npy", np.ones((2, 3)), np.ones((3, 2)))
    assert folders.evaluate() == 1
    message = error_of(capsys)
    assert "x.npy" in message and "[2, 3]" in message and "[3, 2]" in message


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_object_arrays_are_never_unpickled(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bomb = np.array([Bomb(tmp_path / "exploded")], object)
    folders.save("0.npy", bomb, bomb)
    assert folders.evaluate() == 1
    assert "0.npy' cannot be read: Object arrays" in error_of(capsys)
    assert not (tmp_path / "exploded").exists()


def huge_header() -> bytes:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"text", huge_header()])
@pytest.mark.parametrize("name", ["0.npy", "0.png", "0.jpg"])
def test_unreadable_files(
    folders: Folders, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (folders.baseline, folders.quantized):
        (folder / name).write_bytes(content)
    assert folders.evaluate() == 1
    assert f"{name}' cannot be read: " in error_of(capsys)


def test_truncated_files(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save("0.npy", np.ones(1000), np.ones(1000))
    path = folders.quantized / "0.npy"
    path.write_bytes(path.read_bytes()[:-100])
    assert folders.evaluate() == 1
    assert f"'{path}' cannot be read: " in error_of(capsys)


def test_strings_are_no_numbers(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.save("0.npy", np.array(["a"]), np.array(["a"]))
    assert folders.evaluate() == 1
    assert "elements of type <U1 are not real numbers" in error_of(capsys)


def test_misspelt_options_are_usage_errors(three: tuple) -> None:
    with pytest.raises(SystemExit) as stop:
        three[0].evaluate("--baseline_results", "x")
    assert stop.value.code == 2


def test_names_that_differ_only_in_the_case_of_the_suffix(tmp_path: Path) -> None:
    for name in ("a.npy", "a.NPY"):
        np.save((tmp_path / name).open("wb"), np.ones(1))
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("the file system does not tell letter cases apart")
    with pytest.raises(ValueError, match="have the same name"):
        find_files(tmp_path)


def test_natural_order() -> None:
    names = ["b.npy", "10.npy", "a10b2.npy", "2.npy", "a9b30.npy", "1.npy"]
    assert sorted(names, key=natural_order) == ["1.npy", "2.npy", "10.npy", "a9b30.npy", "a10b2.npy", "b.npy"]


@pytest.mark.parametrize(
    ("mode", "shape"), [("1", (4, 5)), ("L", (4, 5)), ("P", (4, 5, 3)), ("RGBA", (4, 5, 4))]
)
def test_image_modes(tmp_path: Path, mode: str, shape: tuple[int, ...]) -> None:
    Image.new(mode, (5, 4)).save(tmp_path / "a.png")
    array = read_array(tmp_path / "a.png")
    assert (array.shape, array.dtype) == (shape, np.uint8)


def test_16_bit_images_keep_their_depth(tmp_path: Path) -> None:
    deep = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert np.array_equal(read_array(tmp_path / "a.png"), deep)


def test_each_file_is_read_once(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """What that costs beside reading is measured by tests.benchmarks.bench_evaluate."""
    x = RNG.standard_normal((1, 64)).astype(np.float32)
    for i in range(40):
        folders.save(f"{i}.npy", x, x + np.float32(i))
    read = []
    monkeypatch.setattr(compare_results, "read_array", lambda path: read.append(path) or read_array(path))
    pairs = pair_files(folders.baseline, folders.quantized)
    assert len(list(compare(pairs))) == 40
    assert sorted(read) == sorted(path for pair in pairs for path in (pair.baseline, pair.quantized))


def test_help_starts_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tools import evaluate\n"
        "try: evaluate.main(['--help-all'])\nexcept SystemExit: pass\n"
        "print(sorted({'skimage', 'scipy', 'onnx', 'onnxruntime', 'PIL', 'numpy'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(evaluate.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.endswith("[]\n") and "identical" not in done.stdout and "inf" in done.stdout


def test_litter_of_operating_systems_is_no_result(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.save("a.npy", np.ones(3), np.ones(3))
    (folders.quantized / "._a.npy").write_bytes(b"\0\5\x16\7")
    (folders.baseline / "__MACOSX").mkdir()
    np.save(folders.baseline / "__MACOSX" / "a.npy", np.ones(3))
    assert folders.evaluate() == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"Skipped in '{folders.baseline}': 1 file of operating systems, such as '__MACOSX'",
        f"Skipped in '{folders.quantized}': 1 file of operating systems, such as '._a.npy'",
    ]


def test_integers_beside_floats(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal class numbers have a line, and make neither the mean of boxes infinite nor its worst value."""
    box = np.arange(1.0, 9.0)
    folders.save("boxes/0.npy", box, box * 1.01)
    folders.save("labels/0.npy", np.array([3, 4]), np.array([3, 4]))
    assert folders.evaluate() == 0
    out = capsys.readouterr().out
    assert "Mean sqnr: 40\nMin sqnr: 40\n" in out
    assert "Not in mean and worst values: 1 files of integers, identical: 1\n" in out
