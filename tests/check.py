"""Run all checks of the project, from its root: ``python -m tests.check [PYTEST OPTIONS]``.

Style, types and tests; the tests run in one process for each core. Every check runs even if one before it
failed; the exit code is 0 only if all passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commands(options: list[str]) -> list[list[str]]:
    """Return the checks; the tests come last, so that their summary is the last line."""
    python = [sys.executable, "-m"]
    return [
        [*python, "ruff", "check", "."],
        [*python, "ruff", "format", "--check", "."],
        [*python, "mypy"],
        [*python, "pytest", "--numprocesses", "auto", "--dist", "worksteal", *options],
    ]


def main() -> int:
    """Run the checks and return the exit code."""
    failed = []
    environment = os.environ | {"PYTHONHASHSEED": "0"}  # each process has to name the same cases
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles all modules
    for command in commands(sys.argv[1:]):
        print("$", *command, file=sys.stderr, flush=True)
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(" ".join(command[2:]))
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())
