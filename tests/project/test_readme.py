"""The lines of README and CONTRIBUTING that set up, and what the second runs."""

from __future__ import annotations

import os
import sys

import pytest

from tests import check
from tests.helpers.documents import ROOT, blocks

INSTALL = "pip install --quiet --no-compile -e "
SET_UP = [
    line
    for name in ("README.md", "CONTRIBUTING.md")
    for block in blocks(name)
    for line in block.code.splitlines()
    if "pip install" in line
]


def test_one_line_sets_up_for_users_and_one_for_developers() -> None:
    assert len(SET_UP) == 2
    assert all(line.startswith("python3 -m venv .venv && source .venv/bin/activate && ") for line in SET_UP)
    assert all(INSTALL in line for line in SET_UP)


def test_first_block_does_the_main_job_and_the_other_line_runs_the_checks() -> None:
    first = next(block for block in blocks("README.md") if block.kind == "bash")
    install, quantize = first.code.splitlines()[:2]
    assert install == SET_UP[0] and quantize.startswith("python -m tools.quantize examples/")
    assert SET_UP[1].endswith('".[test]" && python -m tests.check')


def test_commands_use_the_environment_that_the_first_line_activates() -> None:
    assert all(".venv/bin/python" not in block.code for block in blocks("README.md"))


def test_continuous_integration_calls_the_command_of_developers() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install, checks = SET_UP[1].split(" && ")[2:]
    assert install.removeprefix("pip install ") in script
    assert checks.removeprefix("python ") in script
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
