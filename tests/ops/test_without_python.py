"""A program without Python can load the operator library: its Python symbols are weak, nothing calls them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ops

PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char** words) {
    void* library = dlopen(words[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    puts(dlsym(library, "RegisterCustomOps") ? "found" : "not found");
    return 0;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="binutils make symbols weak")
def test_a_c_program_loads_the_library(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None or shutil.which("objcopy") is None:
        pytest.skip("no compiler and binutils here")
    (tmp_path / "program.c").write_text(PROGRAM, encoding="ascii")
    subprocess.run([compiler, tmp_path / "program.c", "-o", tmp_path / "program", "-ldl"], check=True)
    path = ops.get_library_path(domain="com.amd.quark")
    done = subprocess.run([tmp_path / "program", path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "found\n")
