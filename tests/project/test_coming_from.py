"""The pages on other quantizers: no name of theirs is missing, every name of ours exists.

Oracles: the public names of AMD Quark's guides, listed here; signatures and documentation of the installed
ONNX Runtime; our parsers, schemes and tables. Blocks, links and dotted names are tested with all documents.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from enum import Enum

import onnxruntime
import pytest
from onnxruntime import quantization
from onnxruntime.quantization.execution_providers import qnn

from ops.formats import ATTRIBUTES, FORMATS
from tests.helpers.documents import prose, read
from tests.helpers.tool_parsers import REQUIRED, parser_of
from transforms.scheme import preset
from transforms.scheme.finetune_rule import FinetuneRule
from transforms.scheme.mixing_rule import MixingRule
from transforms.scheme.presets import PRESETS, TUNED, find_preset
from transforms.scheme.scheme import Scheme

QUARK, RUNTIME = "docs/reference/names_amd_quark.md", "docs/reference/names_onnxruntime.md"

GUIDES = re.findall(
    r"\S+",
    """
quark.onnx.tools.convert_fp32_to_bf16 quark.onnx.tools.convert_fp16_to_bf16 quark.onnx.tools.evaluate
quark.onnx.tools.evaluate.py --input --output --format with_cast bf16 simulate_bf16 customqdq
--baseline_results_folder --quantized_results_folder infer_model_and_save_output
ModelQuantizer quantize_model get_default_config Config QuantizationConfig QConfig QLayerConfig BFloat16Spec
AdaQuantConfig num_iterations learning_rate CalibrationDataReader get_next CalibrationMethod.MinMax
get_library_path register_custom_ops_library ROCMExecutionProvider CUDAExecutionProvider CPUExecutionProvider
QuantType.QInt8 QuantFormat.QDQ ExtendedQuantFormat.QDQ ExtendedQuantType.QInt16 ExtendedQuantType.QBFloat16
QBloat16 ExtendedQuantType.QBFP ExtendedQuantType.QMX BFPQuantizeDequantize A8W8 A16W8
INT8 UINT8 INT16 UINT16 INT32 UINT32 Float16 BFP16 MX4 MX6 MX9 MXINT8 MXFP8_E4M3 MXFP8_E5M2 MXFP6_E3M2
MXFP6_E2M3 MXFP4 to_bfp to_bfp_prime
calibrate_method quant_format activation_type weight_type input_tensors weight global_quant_config
global_config algo_config include_fast_ft fast_finetune include_auto_mp specific_tensor_precision
extra_options ActivationSymmetric AlignSlice FoldRelu AlignConcat AlignEltwiseQuantType QuantizeAllOpTypes
ForceQuantizeNoInputCheck BF16QDQToCast FastFinetune AutoMixprecision MixedPrecisionTensor BFPAttributes
MXAttributes DataSize FixedSeed BatchSize NumIterations LearningRate OptimAlgorithm adaround adaquant
OptimDevice InferDevice EarlyStop hip:0 cuda:0 cpu onnxruntime-rocm onnxruntime-gpu
TargetOpType TargetQuantType ActTargetQuantType WeightTargetQuantType OutputIndex L2Target Top1 DualQuantNodes
bfp_method axis bit_width block_size sub_block_size sub_block_shift_bits rounding_mode
""",
)
"""Commands, options, classes, functions, formats and keys in the guides, by their names."""


TABLES = ("[layers]", "[tensors]", "[formats.NAME]", "[finetune]", "[auto_mixed_precision]")
WORDS = ("CPU", "CUDA", "ROCM", "CalibrationDataReader")
"""Code in the columns of ours that is no name of ours: values that are the same on both sides."""


def columns(document: str, *, theirs: bool) -> str:
    """Return the columns of all tables that name the other quantizer, or those of what takes its place."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", prose(document), re.MULTILINE):
        heading, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        for row in rows:
            for title, cell in zip(heading, row, strict=True):
                if (title in ("AMD Quark", "onnxruntime", "there")) == theirs and "why" not in title:
                    found.append(cell)
    return "\n".join(found)


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def is_named(name: str, text: str) -> bool:
    return bool(re.search(rf"(?<![\w.-]){re.escape(name)}(?!\w)", text))


@pytest.mark.parametrize("name", GUIDES)
def test_every_name_of_the_guides_has_its_row(name: str) -> None:
    assert is_named(name, columns(QUARK, theirs=True))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in read(QUARK)


def test_presets_with_tuning_are_those_that_the_page_names() -> None:
    text = " ".join(read(QUARK).split())
    sentence = re.search(
        r"Each preset but ([^;]*) has a form with `_ADAQUANT` at its end; (.*?) one with `_ADAROUND`", text
    )
    assert sentence
    assert TUNED["_ADAQUANT"] == PRESETS.keys() - {*spans(sentence[1])}
    assert TUNED["_ADAROUND"] == {*spans(sentence[2])}


@pytest.mark.parametrize("document", [QUARK, RUNTIME])
def test_what_takes_the_place_of_a_name_exists(document: str) -> None:
    unknown = [span for span in spans(columns(document, theirs=False)) if not is_ours(span)]
    assert not unknown


def is_ours(span: str) -> bool:
    """Return whether a name is one of a tool and its options, a scheme, a format, a preset or a module."""
    known = {*FORMATS, *TABLES, *WORDS, "float32", "base"}
    if (
        span.strip('"') in known
        or find_preset(span.strip('"'))
        or span in (key for keys in ATTRIBUTES.values() for key in keys)
    ):
        return True
    tool, *options = span.split()
    if tool.startswith("tools.") and tool.removeprefix("tools.") in REQUIRED:
        return set(options) <= options_of(tool.removeprefix("tools."))
    if span.startswith("--"):
        return span.split()[0] in {option for name in REQUIRED for option in options_of(name)}
    if span.startswith(("ops.", "tools.", "transforms.", "onnx_narrow.")):
        return True  # tested in all documents
    return is_key(span) or is_key(f'calibrate_method = "{span}"')


def is_key(span: str) -> bool:
    """Return whether text is a key of a scheme or of one of its tables, with a legal value if it has one."""
    key, equals, _ = span.partition(" = ")
    makers: list[tuple[type, Callable[..., object]]] = [
        (Scheme, preset("A8W8").with_),
        (FinetuneRule, FinetuneRule),
        (MixingRule, lambda **given: MixingRule(**{"target": "int8"} | given)),
    ]
    for kind, make in makers:
        if key in kind.__dataclass_fields__:  # type: ignore[attr-defined]
            return not equals or _takes(make, tomllib.loads(span))
    return False


def _takes(make: Callable[..., object], values: dict[str, object]) -> bool:
    try:
        make(**values)
    except ValueError:
        return False
    return True


def options_of(tool: str) -> set[str]:
    return {word for action in parser_of(tool)._actions for word in action.option_strings}


def names_of_runtime() -> Iterator[str]:
    """Yield functions, arguments, enumerations and documented options of the installed ONNX Runtime."""
    calls: list[Callable[..., object]] = [
        quantization.quantize_static,
        quantization.quantize_dynamic,
        quantization.quant_pre_process,
        quantization.get_qdq_config,
        qnn.get_qnn_qdq_config,
    ]
    for call in calls:
        yield call.__name__
        yield from (name for name in inspect.signature(call).parameters if name != "deprecated_kwargs")
        options = (call.__doc__ or "").partition("Current used:")[2]
        yield from re.findall(r"^ {16}([A-Za-z][\w.]*) = ", options, re.MULTILINE)
    kinds: list[type[Enum]] = [
        quantization.CalibrationMethod,
        quantization.QuantFormat,
        quantization.QuantType,
    ]
    yield from (f"{kind.__name__}.{one.name}" for kind in kinds for one in kind)


def test_every_name_of_the_installed_runtime_has_its_row() -> None:
    described = re.search(r"`onnxruntime.quantization` (\d+)\.(\d+)", read(RUNTIME))
    assert described
    installed = re.match(r"(\d+)\.(\d+)", onnxruntime.__version__)
    assert installed
    if tuple(map(int, installed.groups())) > tuple(map(int, described.groups())):
        pytest.skip("the page describes an older ONNX Runtime")
    text = columns(RUNTIME, theirs=True)
    missing = [name for name in names_of_runtime() if not is_named(name, text)]
    assert not missing
