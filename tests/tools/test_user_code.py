"""Code that a scheme names runs where the user knows of it. Oracle: whether the file left its mark."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import build, tunable

CONV = tunable.conv_net()
TOOLS = ("quantize", "auto_mixed_precision")
SCHEME = 'preset = "BF16"\n[auto_mixed_precision]\ntarget = "mx6"\nevaluate_target = 9.0\nevaluate = "{}"\n'


class Attempt:
    """A model with samples, a scheme in one folder, and a metric that leaves a mark when it runs."""

    def __init__(self, tool: str, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        for name in ("data", "scheme", "elsewhere"):
            (folder / name).mkdir()
        build.save(CONV, folder / "float.onnx")
        np.savez(folder / "data" / "0.npz", **tunable.samples(CONV, 1)[0])  # type: ignore[arg-type]
        self.tool, self.folder, self.mark, self._capture = tool, folder, folder / "mark", capture
        self.scheme, self.output = folder / "scheme" / "scheme.toml", folder / "out.onnx"

    def metric(self, folder: str) -> Path:
        """Write a file whose import leaves the mark, and return its path."""
        path = self.folder / folder / "metric.py"
        path.write_text(f"open({str(self.mark)!r}, 'a').close()\ndef one(outputs):\n    return 1.0\n")
        return path

    def run(self, file: Path, *options: str) -> tuple[int, str]:
        """Run the tool with a scheme that names the file; return exit code and stderr."""
        self.scheme.write_text(SCHEME.format(f"{file}:one"))
        given = ["--input", self.folder / "float.onnx", "--output", self.output, "--config", self.scheme]
        given += ["--data", self.folder / "data"]
        main = importlib.import_module(f"tools.{self.tool}").main
        return main([*map(str, given), *options]), self._capture.readouterr().err

    def said(self, file: Path) -> str:
        return f"Running code: function 'one' of '{file}', as '{self.scheme}' says\n"


@pytest.fixture(params=TOOLS)
def attempt(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Attempt:
    return Attempt(request.param, tmp_path, capsys)


def test_a_file_in_the_folder_of_the_scheme_is_named_and_run(attempt: Attempt) -> None:
    file = attempt.metric("scheme")
    assert attempt.run(file) == (0, attempt.said(file)) and attempt.mark.exists()


def test_a_file_elsewhere_is_refused_in_one_line(attempt: Attempt) -> None:
    file = attempt.metric("elsewhere")
    code, errors = attempt.run(file)
    assert code == 1 and errors.count("\n") == 1 and not attempt.mark.exists()
    assert f"'{file}' lies outside the folder of '{attempt.scheme}'" in errors and "--allow-code" in errors
    assert not attempt.output.exists()
    assert attempt.run(file, "--allow-code") == (0, attempt.said(file)) and attempt.mark.exists()


@pytest.mark.parametrize("named", ["link.py", "sub/../../elsewhere/metric.py"])
def test_a_link_and_a_path_that_lead_elsewhere_are_refused(attempt: Attempt, named: str) -> None:
    file = attempt.metric("elsewhere")
    (attempt.folder / "scheme" / "sub").mkdir()
    (attempt.folder / "scheme" / "link.py").symlink_to(file)
    code, errors = attempt.run(attempt.folder / "scheme" / named)
    assert code == 1 and f"'{file}' lies outside" in errors and not attempt.mark.exists()


def test_a_relative_path_counts_from_the_current_folder(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt.metric("elsewhere")
    monkeypatch.chdir(attempt.folder / "elsewhere")
    code, errors = attempt.run(Path("metric.py"))
    assert code == 1 and "--allow-code" in errors and not attempt.mark.exists()


def test_what_the_command_line_names_is_the_user_s_own_word(attempt: Attempt) -> None:
    place = f"{attempt.metric('elsewhere')}:one"
    option = ["--set", f'auto_mixed_precision.evaluate="{place}"']
    assert attempt.run(attempt.folder / "scheme" / "none.py", *option) == (0, "")
    assert attempt.run(Path(place.removesuffix(":one")), *option, "--force") == (0, "")
    code, errors = attempt.run(attempt.folder / "none.py", *option, "--allow-code", "--force")
    assert code == 1 and "--allow-code requires a scheme whose key evaluate names a file" in errors


def test_the_option_evaluate_is_the_user_s_own_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = Attempt("auto_mixed_precision", tmp_path, capsys)
    place = f"{attempt.metric('elsewhere')}:one"
    assert attempt.run(attempt.folder / "none.py", "--evaluate", place) == (0, "")
    assert attempt.mark.exists()
