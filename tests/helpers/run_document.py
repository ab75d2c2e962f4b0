"""Run what a document shows: ``python -m tests.helpers.run_document README.md [--update]``.

Prints what a block prints that differs from what the document shows, and ends with 1 if any does or fails.
``--update`` writes what was printed into the document, in place of what it showed there; what it left out
stays out.

A block runs in a fork of this process, which has imported what most of them need: a start costs milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path

from tests.helpers.documents import ROOT, Block, agree, read, steps

_HEAVY = (
    *("numpy", "onnx", "onnx_graphsurgeon", "onnxruntime", "ops", "transforms.model_io"),
    *(
        "transforms.conversion.convert_bf16",
        "transforms.pipelines.quantize_graph",
        "transforms.precision",
    ),
)
_OPERATORS = {"|", ">", ">>", "<"}

LEFT_OUT = "..."
"""A line that stands for any lines."""

EXAMPLES = ("examples", "tests/examples")
"""What the folder holds that documents run in."""


def commands(code: str) -> list[list[str]]:
    """Return the commands of a bash block as words; those that set up are left out, and the suite itself."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            lexer = shlex.shlex(part, posix=True, punctuation_chars="|<>")
            lexer.whitespace_split = True
            words = list(lexer)
            sets_up = words and (Path(words[0]).name in ("pip", "source") or "venv" in words)
            if words and not sets_up and words[1:] != ["-m", "tests.check"]:
                found.append(words)
    return found


def main() -> int:
    """Run the blocks of the document on the command line; return 0 if all do what the document says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("document")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in _HEAVY:
        import_module(name)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary) / "work"
        for folder in EXAMPLES:
            shutil.copytree(ROOT / folder, work / folder)
        wrong = _run_all(options.document, work, update=options.update)
        own = {Path(folder).parts[0] for folder in EXAMPLES}
        new = [path for path in work.iterdir() if path.name not in own]
        left = not_ignored(new, "") if options.document == "README.md" else []
        print("".join(f"README.md: .gitignore does not cover '{name}'\n" for name in left), end="")
        return int(wrong or bool(left))


def not_ignored(paths: Iterable[Path], folder: str) -> list[str]:
    """Return the files and folders that git would list as new in a folder of a checkout, as ``examples/``."""
    names = sorted(f"{folder}{path.name}{'/' * path.is_dir()}" for path in paths)
    command = ["git", "check-ignore", "--no-index", "--verbose", "--non-matching", "--stdin"]
    done = subprocess.run(
        command, cwd=ROOT, input="\n".join(names), capture_output=True, text=True, check=False
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]  # "::" before what no pattern matches
    return [name for pattern, name in lines if pattern == "::"]


def _run_all(document: str, work: Path, *, update: bool) -> int:
    wrong, text = 0, read(document)
    for block in steps(document):
        if block.file:
            (work / block.file).parent.mkdir(parents=True, exist_ok=True)
            (work / block.file).write_text(block.code, encoding="utf-8")
        if not block.is_executed:
            continue
        failure, printed = _run(block, work)
        if failure:
            wrong += 1
            print(f"{document}:{block.line}: {failure}")
        if block.prints and not agree(block.prints.code, printed):
            wrong += 1
            print(f"{document}:{block.prints.line}: printed is\n{printed}")
            head = f"{block.code}```\n\n```text\n"
            text = text.replace(head + block.prints.code, head + abridged(block.prints.code, printed))
    if update:
        (ROOT / document).write_text(text, encoding="utf-8")
    return min(wrong, 1)


def abridged(shown: str, printed: str) -> str:
    """Return the lines that were printed; in the place of lines that "..." leaves out, that."""
    lines = printed.strip("\n").split("\n")
    if LEFT_OUT not in shown.splitlines():
        return "\n".join(lines) + "\n"
    kept, first = list[str](), 0
    for line in shown.splitlines():
        if line != LEFT_OUT and first < len(lines):
            alike = [SequenceMatcher(None, line, other).ratio() for other in lines[first:]]
            first += alike.index(max(alike)) + 1
            kept.append(lines[first - 1])
        elif line == LEFT_OUT:
            kept.append(line)
    return "\n".join(kept) + "\n"


def _run(block: Block, work: Path) -> tuple[str, str]:
    """Run a block; return what is wrong with how it ended, or nothing, and all that it printed."""
    words = [["python", "-c", block.code]] if block.kind == "python" else commands(block.code)
    failure, printed = "", ""
    for command in words:
        code, output, errors = _run_command(command, work)
        printed += output + (errors if block.kind == "bash fails" else "")
        if (code == 0) == (block.kind == "bash fails"):
            failure += f"{' '.join(command[:9])} ... ended with {code}\n{errors}"
    return failure, printed


def _run_command(words: list[str], work: Path) -> tuple[int, str, str]:
    """Run a command in a folder; return its exit code, stdout and stderr."""
    first = next((i for i, word in enumerate(words) if word in _OPERATORS), len(words))
    own, rest = words[:first], words[first:]
    if Path(own[0]).name not in ("python", "python3"):
        own, rest = [], words
    code, output, errors = _run_python(own[1:], work) if own else (0, "", "")
    if not rest or code:
        return code, output, errors
    script = " ".join(word if word in _OPERATORS else shlex.quote(word) for word in rest)
    done = subprocess.run(
        ["bash", "-c", f"cat {script}" if own else script],
        cwd=work,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=output,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, errors + done.stderr


def _run_python(arguments: list[str], work: Path) -> tuple[int, str, str]:
    """Do in a fork what the interpreter does with these arguments."""
    streams = [work.parent / name for name in ("out", "err")]
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        gc.freeze()  # as tests.helpers.forked does
        try:
            for number, stream in enumerate(streams, 1):
                os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.chdir(work)
            code = _interpret(arguments, work)
            sys.stdout.flush()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    output, errors = (stream.read_text(encoding="utf-8", errors="replace") for stream in streams)
    return os.waitstatus_to_exitcode(status), output, errors


def _interpret(arguments: list[str], work: Path) -> int:
    sys.path[:0] = [str(work), str(ROOT)]
    kind, *rest = arguments
    try:
        if kind == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            script = Path(kind)
            if kind == "-c":
                script = work.parent / "block.py"
                script.write_text(rest.pop(0), encoding="utf-8")
            sys.argv = [str(script), *rest]
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
