"""What the README shows works: its blocks are executed in a copy of what they need, in their order."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import check
from transforms.scheme import preset, read_scheme

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
INSTALL = "pip install"
SET_UP = [code.strip() for language, code in BLOCKS if language == "bash" and INSTALL in code]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example files, as the README's paths expect them, and nothing to import."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "tests" / "examples", folder / "tests" / "examples")
    return folder


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def commands(code: str) -> list[list[str]]:
    """Return the commands of a block; those that set up are reduced to what follows the installation."""
    lines = code.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in re.split(r"&&|#", line) if part.strip()]
    words = [shlex.split(part) for part in parts]
    return [command for command in words if "pip" not in command[0] and "venv" not in command]


def test_every_block_says_its_language_and_is_of_a_kind_that_is_tested() -> None:
    assert BLOCKS
    assert {language for language, _ in BLOCKS} <= {"bash", "python", "toml"}


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "toml"])
def test_schemes_are_schemes(code: str, tmp_path: Path) -> None:
    (tmp_path / "scheme.toml").write_text(code, encoding="utf-8")
    scheme = read_scheme(tmp_path / "scheme.toml")
    assert scheme.layers or scheme.auto_mixed_precision
    assert scheme != preset("A16W8")


def test_readme_has_exactly_two_commands_that_set_up() -> None:
    assert README.count(INSTALL) == len(SET_UP) == 2
    assert all(len(command.splitlines()) == 1 for command in SET_UP)
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install -e ") for command in SET_UP)


def test_first_does_the_main_job_and_second_runs_the_checks() -> None:
    assert ".venv/bin/python -m tools.convert_fp32_to_bf16 --input tests/examples/digits.onnx" in SET_UP[0]
    assert SET_UP[1].endswith('".[test]" && .venv/bin/python -m tests.check')


def test_continuous_integration_calls_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install, checks = SET_UP[1].split(" && ")[1:]
    assert install.removeprefix(".venv/bin/pip install ") in script
    assert checks.removeprefix(".venv/bin/python ") in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_checks_are_style_types_and_tests() -> None:
    modules = [command[2] for command in check.commands(["-x"])]
    assert modules == ["ruff", "ruff", "mypy", "pytest"]
    assert check.commands(["-x"])[-1][-1] == "-x"


def test_all_checks_run_and_one_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    scripts = ["pass", "raise SystemExit(3)", "print('the last one')"]
    programs = [[sys.executable, "-c", script] for script in scripts]
    monkeypatch.setattr(check, "commands", lambda options: programs)
    assert check.main() == 1
    printed = capfd.readouterr()
    assert printed.out == "the last one\n"
    assert printed.err.splitlines()[-1] == "failed: raise SystemExit(3)"
    monkeypatch.setattr(check, "commands", lambda options: programs[::2])
    assert check.main() == 0


def test_all_blocks_run_in_their_order(copy: Path) -> None:
    count, runnable = 0, [block for block in BLOCKS if block[0] != "toml"]
    for language, code in runnable:
        for arguments in [["-c", code]] if language == "python" else _python_arguments(code):
            done = run(arguments, copy)
            assert done.returncode == 0, f"{arguments}\n{done.stderr}"
            count += 1
    assert count >= len(runnable) - 1  # all but the one that would run these tests


def _python_arguments(code: str) -> list[list[str]]:
    """Return what each Python command of a bash block runs, and refuse any other command."""
    found = []
    for program, *arguments in commands(code):
        assert Path(program).name in ("python", "python3"), program
        if arguments != ["-m", "tests.check"]:
            found.append(arguments)
    return found


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_linked_files_exist(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ((?:tests|tools)[\w.]+)", README))))
def test_modules_named_exist(module: str) -> None:
    assert (ROOT / (module.replace(".", "/") + ".py")).is_file()
