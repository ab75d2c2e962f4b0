"""The table of options. Oracles: signatures, docstrings, parsers, and the names that the library knows."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields

import pytest

import onnx_narrow
from onnx_narrow.options import JOBS, keywords, options, rows, shared
from onnx_narrow.options.kinds import FLAG
from onnx_narrow.options.mix_precision import TABLE_KEYS
from onnx_narrow.options.option import USUAL, Need, Option
from onnx_narrow.options.quantize import SCHEME_KEYS
from ops.rounding import ALGORITHMS
from tests.helpers import signatures
from tests.helpers.tool_parsers import REQUIRED, parser_of
from transforms.graph.dot_products import DOT_PRODUCTS
from transforms.judge.constants import EFFORTS
from transforms.pipelines.bf16 import TOOLS
from transforms.run.image_options import SCALINGS
from transforms.runtime import devices
from transforms.scheme import Scheme, finetune_rule, targets
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.target import FALLBACKS

EVERY = [(job, row) for job in JOBS for row in rows(job) if job in re.findall(r"\w+", row.jobs)]
NAMED = {
    ("quantize", "target"): targets.TARGETS,
    ("quantize", "effort"): EFFORTS,
    ("quantize", "fallback"): FALLBACKS,
    ("convert_bf16", "float_type"): TOOLS,
    ("finetune", "algorithm"): finetune_rule.ALGORITHMS,
    ("finetune", "target_op_type"): DOT_PRODUCTS,
    ("finetune", "optim_device"): devices.DEVICES,
    ("finetune", "infer_device"): devices.DEVICES,
}
"""Names that the table repeats, so that help needs no imports."""


@pytest.mark.parametrize("job", signatures.FUNCTIONS)
def test_signatures_and_docstrings_have_the_options_of_the_table(job: str) -> None:
    assert signatures.updated(job) == signatures.source_of(job).read_text(encoding="utf-8"), (
        signatures.COMMAND
    )


@pytest.mark.parametrize("job", signatures.FUNCTIONS)
def test_defaults_are_those_of_the_functions(job: str) -> None:
    parameters = inspect.signature(getattr(onnx_narrow, job)).parameters
    assert parameters.keys() == keywords(job).keys()
    required = {name for name, one in parameters.items() if one.default is inspect.Parameter.empty}
    for name, row in keywords(job).items():
        assert name in required or row.kind.default == parameters[name].default, name


def test_a_row_that_a_signature_lacks_is_written_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Option("silent", FLAG, "quantize", "", USUAL, (), "say nothing of {data}")
    monkeypatch.setattr(shared, "ROWS", (*shared.ROWS, row))
    keywords.cache_clear()
    try:
        assert signatures.stale() == ["quantize"]
        text = signatures.updated("quantize")
        assert "    silent: bool = False,\n" in text
        assert "    silent : bool\n        Say nothing of ``data``.\n" in text
    finally:
        keywords.cache_clear()


@pytest.mark.parametrize(("job", "name"), NAMED)
def test_choices_are_what_the_library_knows(job: str, name: str) -> None:
    assert {*keywords(job)[name].kind.choices} == {*NAMED[job, name]}


def test_algorithms_are_those_of_the_solvers() -> None:
    assert {*ALGORITHMS, "auto"} == {*keywords("finetune")["algorithm"].kind.choices}


def test_scales_by_name_are_what_the_library_knows() -> None:
    assert keywords("infer")["preprocess"].kind.words.startswith(", ".join(SCALINGS))


@pytest.mark.parametrize(("job", "row"), EVERY, ids=lambda value: getattr(value, "name", value))
def test_rows_name_options_and_jobs_that_there_are(job: str, row: Option) -> None:
    assert {*re.findall(r"\w+", row.jobs)} <= {*JOBS}
    texts = [need.words for need in row.needs_in(job)]
    known = {name for one in JOBS for name in (*keywords(one), *options(one))}
    assert {*re.findall(r"\{(\w+)", " ".join([row.help, *texts]))} <= known


@pytest.mark.parametrize("job", JOBS)
def test_each_option_has_one_row(job: str) -> None:
    own = [row.name for one, row in EVERY if one == job]
    assert len(own) == len({*own})


@pytest.mark.parametrize("tool", REQUIRED)
def test_options_are_keywords_unless_the_command_alone_has_them(tool: str) -> None:
    parser = parser_of(tool)
    named = {action.dest for action in parser._actions} - {"help", "help_all"}
    assert named == options(parser.job).keys()
    alone = {row.name for row in options(parser.job).values() if f"--{parser.job}" in row.jobs.split()}
    assert named - keywords(parser.job).keys() == alone


def test_keys_of_schemes_are_keys_of_schemes() -> None:
    assert {*SCHEME_KEYS} <= {one.name for one in fields(Scheme)}
    assert {*TABLE_KEYS} <= {*MixingRule.key_names()}


@pytest.mark.parametrize(
    ("words", "met", "unmet"),
    [
        ("{data}", ["data"], ["", "fast"]),
        ("{data} or {random_data}", ["data", "random_data"], ["fast"]),
        ("{data}, without {fast} or {ranges}", ["data"], ["", "fast", "data fast", "data ranges"]),
        ("single samples, without {sequences}", ["", "data"], ["sequences"]),
        ("no {selective_update}", ["", "data"], ["data selective_update"]),
        ("{format:customqdq or bf16}", ["format=bf16"], ["", "format=with_cast"]),
    ],
)
def test_the_words_of_a_need_are_its_rule(words: str, met: list[str], unmet: list[str]) -> None:
    for text, is_met in [*((one, True) for one in met), *((one, False) for one in unmet)]:
        given = {word.partition("=")[0]: word.partition("=")[2] for word in text.split()}
        assert Need(words).is_met(given) == is_met, text


def test_reading_the_table_imports_no_library() -> None:
    code = (
        "import sys; from onnx_narrow.options import JOBS, keywords; [*map(keywords, JOBS)]\n"
        "print(*(name for name in ('numpy', 'onnx', 'ops', 'argparse') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
