"""Builds in forks of one process: the modules that a build imports take longer than the builds of tests.

Each line of the input is JSON: the folder of setup.py, a file for what it prints, and environment variables;
each line of the output is the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from functools import partial

from tests.helpers.forked import forked

_HEAVY = ("Cython.Build", "Cython.Compiler.ParseTreeTransforms", "setuptools.command.build_ext")


def _build(folder: str, output: str, variables: dict[str, str]) -> int:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
    runpy.run_path("setup.py", run_name="__main__")
    return 0


def main() -> None:
    """Build for each line."""
    for name in _HEAVY:
        importlib.import_module(name)
    for line in sys.stdin:
        _, status = os.waitpid(forked(partial(_build, *json.loads(line))), 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
