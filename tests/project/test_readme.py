"""The two commands of the README that set up, and what the second runs."""

from __future__ import annotations

import os
import sys

import pytest

from tests import check
from tests.helpers.documents import ROOT, blocks, read

README = read("README.md")
INSTALL = "pip install"
SET_UP = [
    block.code.strip() for block in blocks("README.md") if block.kind == "bash" and INSTALL in block.code
]


def test_readme_has_exactly_two_commands_that_set_up() -> None:
    assert README.count(INSTALL) == len(SET_UP) == 2
    assert all(len(command.splitlines()) == 1 for command in SET_UP)
    assert all(
        command.startswith("python3 -m venv .venv && .venv/bin/pip install --no-compile -e ")
        for command in SET_UP
    )


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
