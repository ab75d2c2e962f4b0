"""What the documents show works: blocks run and print what is shown, what they link and name exists.

Oracles: the programs themselves, and the parsers of the tools. How blocks are written says
:mod:`tests.helpers.documents`; what differs is written anew by ``python -m tests.helpers.run_document``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.documents import (
    DOCUMENTS,
    GUIDES,
    KINDS,
    ROOT,
    Block,
    agree,
    blocks,
    prose,
    read,
    slugs,
    steps,
)
from tests.helpers.reference import generated
from tests.helpers.run_document import commands
from tests.helpers.tool_parsers import REQUIRED, parser_of
from transforms.scheme import read_scheme

METADATA = ("onnx_narrow.scheme",)  # keys in models, which look like names of modules
FOLDERS = ("ops", "transforms", "tools")
OUTSIDE = ("https://", "http://", "mailto:")


def of_kind(*kinds: str) -> list[tuple[str, Block]]:
    return [(name, block) for name in DOCUMENTS for block in blocks(name) if block.kind in kinds]


EXECUTED = [name for name in DOCUMENTS if any(one.is_executed for one in steps(name))]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_of_a_kind_that_is_tested(document: str) -> None:
    assert {block.kind for block in blocks(document)} <= KINDS - {"text"}  # that stands after an executed one
    fences = read(document).count("```")
    assert fences == 2 * sum(1 + (block.prints is not None) for block in blocks(document))
    assert all(block.is_executed for block in blocks(document) if block.prints)


@pytest.mark.parametrize("document", EXECUTED)
def test_blocks_do_and_print_what_the_document_shows(document: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.run_document", document],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("document", DOCUMENTS)
def test_parts_from_the_code_are_up_to_date(document: str) -> None:
    assert generated(read(document)) == read(document), "run python -m tests.helpers.reference --update"


def test_documents_are_short() -> None:
    assert read("README.md").count("\n") <= 120
    pages = [
        name for name in DOCUMENTS if not name.startswith(("docs/reference/", "CONTRIBUTING", "SECURITY"))
    ]
    words = {name: len(re.findall(r"\S*\w\S*", read(name))) for name in pages}
    assert len(GUIDES) >= 13 and not {name: words[name] for name in GUIDES if words[name] > 900}
    assert sum(words.values()) <= 14_400


def test_change_log_is_short() -> None:
    for section in re.split(r"^## ", read("CHANGELOG.md"), flags=re.MULTILINE)[1:]:
        assert section.count("\n- ") <= 40, section.splitlines()[0]


def test_no_table_cell_is_left_out_and_cells_run_in_order() -> None:
    cells = [step for step in steps("README.md") if step not in blocks("README.md")]
    assert len(cells) >= 7 and all(step.is_executed for step in cells)
    assert [step.line for step in steps("README.md")] == sorted(step.line for step in steps("README.md"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_blocks_are_written_to_are_used(document: str) -> None:
    for i, block in enumerate(blocks(document)):
        if block.file:
            assert any(Path(block.file).stem in later.code for later in blocks(document)[i + 1 :]), block.file


@pytest.mark.parametrize(("document", "block"), of_kind("toml"))
def test_schemes_are_schemes(document: str, block: Block, tmp_path: Path) -> None:
    (tmp_path / "scheme.toml").write_text(block.code, encoding="utf-8")
    read_scheme(tmp_path / "scheme.toml")


@pytest.mark.parametrize(("document", "block"), of_kind("cpp", "csharp"))
def test_code_in_other_languages_closes_its_brackets(document: str, block: Block) -> None:
    bare = re.sub(r'"(?:\\.|[^"\\])*"|//.*', "", block.code)
    while len(bare) > len(bare := re.sub(r"\([^(){}\[\]]*\)|\[[^(){}\[\]]*\]|\{[^(){}\[\]]*\}", "", bare)):
        pass
    assert not set(bare) & set("(){}[]")


def test_cpp_compiles() -> None:
    compiler, headers = shutil.which("g++"), '#include "onnxruntime_cxx_api.h"\n'
    check = [str(compiler), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    if not compiler or subprocess.run(check, input=headers, capture_output=True, text=True).returncode:
        pytest.skip("no compiler that knows ONNX Runtime's headers")
    for document, block in of_kind("cpp"):
        done = subprocess.run(check, input=block.code, capture_output=True, text=True)
        assert done.returncode == 0, f"{document}:{block.line}: {done.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_linked_files_and_headings_exist(document: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href|srcset)=\"([^\"]+)\"", prose(document))
    for link in ("".join(pair) for pair in links):
        path, _, heading = link.partition("#")
        if link.startswith(OUTSIDE):
            continue
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), f"{document}: {link}"
        if heading:
            assert heading in slugs(str(target.resolve().relative_to(ROOT))), f"{document}: {link}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_and_files_named_exist(document: str) -> None:
    for name in re.findall(r"python -m ((?:tests|tools|ops|transforms)[\w.]*)", read(document)):
        assert "NAME" in name or find_spec(name), f"{document}: {name}"
    for span in re.findall(r"`([^`\n]+)`", prose(document)):
        if "NAME" in span or span in METADATA:
            continue
        if re.fullmatch(r"(?:\.ci|ops|transforms|tools|tests)/[\w/.]*", span):
            assert (ROOT / span).exists(), f"{document}: {span}"
        elif re.fullmatch(r"(?:ops|transforms|tools|tests|onnx_narrow)\.[\w.]+(?:\(.*\))?", span):
            assert _exists(span.partition("(")[0]), f"{document}: {span}"


def _exists(name: str) -> bool:
    """Return whether a dotted name is a module, or a part of one."""
    module, _, part = name.rpartition(".")
    try:
        return find_spec(name) is not None or hasattr(import_module(module), part)
    except ModuleNotFoundError:
        return _exists(module) and hasattr(_part(module), part)


def _part(name: str) -> object:
    module, _, part = name.rpartition(".")
    return getattr(import_module(module), part)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_options_named_are_options(document: str) -> None:
    known = {word for tool in REQUIRED for word in _options(tool)} | _options_of_tests()
    named = set(re.findall(r"(?<![\w/-])--[a-zA-Z][\w-]*", " ".join(_own_spans(document))))
    assert not named - known
    for tool, options in _tool_calls(document):
        if tool == "NAME":
            continue
        assert not options - _options(tool), f"{document}: {tool}"


@cache
def _options(tool: str) -> set[str]:
    return {word for action in parser_of(tool)._actions for word in action.option_strings}


@cache
def _options_of_tests() -> set[str]:
    sources = (path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return {word for source in sources for word in re.findall(r'add_argument\(\s*"(--[\w-]+)"', source)}


def _own_spans(document: str) -> list[str]:
    """Return the code in the text that starts with an option; not what a first column calls another's."""
    text = prose(document)
    if "names_" in document or "/from_" in document:
        text = re.sub(r"^\|[^|\n]*\|", "|", text, flags=re.MULTILINE)
    return [span for span in re.findall(r"`([^`\n]+)`", text) if span.startswith("--")]


def _tool_calls(document: str) -> list[tuple[str, set[str]]]:
    """Return the tools that blocks and code in the text run, each with the options that it is given."""
    spans = [span for span in re.findall(r"`([^`\n]+)`", prose(document)) if span.startswith("python -m")]
    code = [block.code for block in blocks(document) if block.kind in ("bash", "console")]
    words = [one for text in [*code, *spans] for one in commands(text.replace("...", ""))]
    calls = [(one[2].removeprefix("tools."), one[3:]) for one in words if "tools." in " ".join(one[:3])]
    return [
        (tool, {word.partition("=")[0] for word in rest if re.match("--[a-z]", word)}) for tool, rest in calls
    ]


def test_each_tool_has_a_section_and_the_tests_of_all_tools() -> None:
    tools = {path.stem for path in (ROOT / "tools").glob("*.py")} - {"__init__", "__main__"}
    assert tools == set(REQUIRED)
    assert tools == set(re.findall(r"^## (.*)$", read("docs/reference/options.md"), re.MULTILINE)) - {
        "Options of several"
    }


def test_ellipsis_stands_for_lines_and_times_are_not_compared() -> None:
    assert agree("a\n...\nz\n", "a\nb\nc\nz\n") and agree("a\n...\n", "a\n")
    assert agree("in 1.5 s, 3 MB/s", "in 20 s, 7.25 MB/s  \n")
    assert not agree("51.32 dB\n", "51.33 dB\n") and not agree("a\n...\nz\n", "a\nb\n")
    assert not agree("7 samples\n", "8 samples\n")


def test_pipes_comments_and_continued_lines_are_read_as_a_shell_does() -> None:
    code = 'python -m tools.a \\\n  --x "1 | 2"  # why\n\npython -m tools.b | head -5 && cat c > d\n'
    assert commands(code) == [
        ["python", "-m", "tools.a", "--x", "1 | 2"],
        ["python", "-m", "tools.b", "|", "head", "-5"],
        ["cat", "c", ">", "d"],
    ]
