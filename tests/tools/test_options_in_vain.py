"""No option is accepted and then ignored. Oracle: the tables below, by hand, of what each option goes with.

That every other option matters is shown where the tool is tested.
"""

from __future__ import annotations

import importlib

import pytest

from onnx_narrow.options import keywords
from onnx_narrow.options.option import RUNNING, SAMPLES
from tests.helpers.tool_parsers import REQUIRED, parser_of

OF_SAMPLES = ("--limit 4", "--image-size 8", "--mean 0", "--std 1", "--layout NCHW", "--sequences")
OF_SAMPLES += ("--preprocess imagenet", "--feeds-from e.onnx")
OF_DATA = (*OF_SAMPLES, "--provider cpu")
"""Also what says no more than what is meant anyway."""

ALWAYS = {
    "auto_mixed_precision": "help verbose model output config assignments target activation_target "
    "weight_target target_op_types exclude_nodes l2_target sqnr_target sqnr_drop_target kl_target "
    "evaluate_target evaluate dual_quant_nodes data opset "
    "input_shapes threads",
    "convert_fp16_to_bf16": "help verbose model output format keep_io_types exclude_node exclude_op strict "
    "optimize save_as_external_data functions force target opset input_shapes time threads",
    "convert_fp32_to_bf16": "help verbose model output format keep_io_types exclude_node exclude_op strict "
    "optimize save_as_external_data functions force target opset input_shapes time threads",
    "check": "help verbose model target",
    "evaluate": "help verbose baseline quantized peak labels logits allow_missing min_greedy metric",
    "finetune": "help verbose float_model quantized output data limit sequences algorithm fixed_seed "
    "batch_size target_op_type selective_update following_relu output_index optim_device memory_limit force "
    "jobs dask save_as_external_data functions threads storage time",
    "formats": "help verbose model plot",
    "infer": "help verbose model output output_names generate force data sequences time provider threads",
    "inspect": "help verbose model against json layers tensors grids",
    "quantize": "help verbose print_config config assignments exclude_nodes exclude_op_types "
    "keep_weight_nodes optimize target opset input_shapes ranges export_ranges time threads",
    "report": "help verbose float_model quantized output force data sequences provider threads csv json "
    "min_sqnr",
}
"""Options that have an effect in any combination, or without which there is nothing to do."""

WITH_IMAGES = {"limit", "image_size", "mean", "std", "layout", "preprocess"}
"""Of tools that need samples: sizes and the like are refused where no image is among them."""


def _cases() -> list[tuple[str, str, str]]:
    """Return tool, options and the beginning of the error."""
    cases = []
    for tool in ("convert_fp16_to_bf16", "convert_fp32_to_bf16"):
        cases += [(tool, one, f"{one.split()[0]} requires --data") for one in ("--min-sqnr 30", *OF_DATA)]
        cases += [
            (tool, "--data d", "--data requires --min-sqnr"),
            (tool, "--domain com.amd.quark", "--domain requires --format customqdq"),
            (
                tool,
                "--format simulate_bf16 --weights float32",
                "--weights requires --format with_cast, bf16 or customqdq",
            ),
            (
                tool,
                "--format simulate_bf16 --saturate-activations",
                "--saturate-activations requires --format",
            ),
        ]
    measured = (
        "--metric kl --min-metric 1",
        "--output-index 0",
        "--labels l.npy",
        "--calibration-cache f",
        "--jobs 1",
        "--dask local",
    )
    measured += ("--resume r", "--json f", "--csv f", "--chart f.svg", "--plot f.svg", "--memory-limit 1G")
    tool = "auto_mixed_precision"
    cases += [
        (tool, f"--output n.onnx {one}", f"{one.split()[0]} requires --data") for one in (*measured, *OF_DATA)
    ]
    moving = (
        "--metric kl --min-metric 1",
        "--bits-target 8",
        "--size 9MB",
        "--labels l.npy",
    )
    moving += ("--save_as_external_data", "--no-functions", "--storage packed", "--no-time")
    cases += [
        (tool, f"--analyze-only --data d {one}", f"{one.split()[0]} requires --output instead of --analyze")
        for one in moving
    ]
    cases += [
        (tool, "--output n --data d --csv a --json ./a", "--json and --csv are the same file"),
        (tool, "--output n --data d --json n", "--output and --json are the same file"),
        (tool, "--analyze-only", "--analyze-only requires --data"),
        (tool, "--analyze-only --data d --force", "--force requires --output, --json, --csv or --chart"),
        (tool, "--analyze-only --data d --plot p.svg", "--plot requires --output instead of"),
        (
            tool,
            "--output n --data d --dask tcp://a:1 --jobs 1",
            "--jobs requires --dask local: the cluster at 'tcp://a:1' has its own workers",
        ),
    ]
    run, data = "--output n.onnx", "--data d"
    with_data = {"quantize": f"--input m.onnx {run} {data}", "auto_mixed_precision": f"{run} {data}"}
    with_data |= dict.fromkeys(("convert_fp16_to_bf16", "convert_fp32_to_bf16"), f"{data} --min-sqnr 30")
    cases += [
        (tool, f"{with_data.get(tool, '')} {options}", f"{options.split()[0]} requires {words}")
        for tool in (*with_data, "finetune", "infer", "report")
        for options, words in (
            ("--state h=o", "--sequences"),
            ("--feed o=h", "--feeds-from"),
            ("--feeds-from e.onnx --sequences", "single samples, without --sequences"),
        )
    ]
    cases += [("finetune", "--selective-update --resume r", "--resume requires no --selective-update")]
    steps = ("--num-iterations 5", "--learning-rate 1", "--early-stop")
    cases += [("finetune", one, f"{one.split()[0]} requires --algorithm ada") for one in steps]
    cases += [("finetune", "--algorithm gptq --full-range free", "--full-range requires --algorithm auto")]
    cases += [
        ("finetune", "--limit 3 --data-size 3", "--limit and --data-size are the same option"),
        (
            "finetune",
            "--provider cpu --infer-device cpu",
            "--provider and --infer-device both select a device",
        ),
        ("finetune", "--dask tcp://a:1 --jobs 2", "--jobs requires --dask local: "),
        ("evaluate", "--force", "--force requires --json or --csv"),
        ("evaluate", "--tokens d", "--tokens requires --logits"),
        ("evaluate", "--max-kl 1", "--max-kl requires --logits"),
        ("evaluate", "--min-same 1", "--min-same requires --logits"),
        ("evaluate", "--logits l --max-perplexity 20", "--max-perplexity requires --tokens"),
        ("infer", "--generate 4 --sequences", "--generate cannot be combined with --sequences"),
        ("evaluate", "--json a --csv ./a", "--json and --csv are the same file, 'a'"),
        ("formats", "--force", "--force requires --plot"),
    ]
    run = "--input m.onnx --output n.onnx"
    cases += [
        (
            "quantize",
            f"{run} --accuracy-level 4",
            "--accuracy-level requires --matmul-nbits or --embeddings",
        )
    ]
    cases += [
        ("quantize", f"{run} {one}", f"{one.split()[0]} requires --data")
        for one in (
            *OF_DATA,
            "--calibration-cache f",
            "--kv-cache int8",
            "--kv-cache int4",
            "--jobs 2",
            "--dask local",
            "--memory-limit 1G",
            "--fast",
        )
    ]
    cases += [
        ("quantize", f"{run} --random-data 3 {one}", f"{one.split()[0]} requires --data")
        for one in (*OF_SAMPLES, "--calibration-cache f", "--fast")
    ]
    cases += [("quantize", f"{run} --random-data 3 --data d", "--random-data and --data cannot")]
    cases += [
        ("quantize", f"{run} {more} {one}", f"{one.split()[0]} requires --data, without --fast, ")
        for one in ("--min-sqnr 20", "--top1 0.01", "--effort high")
        for more in ("", "--data d --fast", "--data d --ranges r.json", "--random-data 3")
    ]
    gated = {
        "quantize": run,
        "auto_mixed_precision": "--output n.onnx",
        "convert_fp16_to_bf16": "",
        "convert_fp32_to_bf16": "",
        "finetune": "",
        "evaluate": "",
    }
    cases += [
        (tool, f"{own} {one}", f"{one.split()[0]} requires --metric")
        for tool, own in gated.items()
        for one in ("--min-metric 0.5", "--max-loss 0.5")
    ]
    cases += [
        (tool, f"{own} {data} --metric top1", "--metric requires --min-metric or --max-loss")
        for tool, own in gated.items()
        if tool not in ("auto_mixed_precision", "evaluate")
        for data in ("" if tool == "finetune" else "--data d",)
    ]
    cases += [
        (
            "quantize",
            f"{run} --data d --fallback bf16",
            "--fallback requires --min-sqnr, --top1 or --metric",
        ),
        (
            "quantize",
            f"{run} --data d --allow-miss",
            "--allow-miss requires --min-sqnr, --top1 or --metric",
        ),
        (
            "quantize",
            f"{run} --data d --allow-large",
            "--allow-large requires --min-sqnr, --top1 or --metric",
        ),
        ("quantize", f"{run} --data d --min-sqnr 20 --top1 0.1", "--min-sqnr and --top1 cannot be combined"),
        (
            "quantize",
            f"{run} --data d --calibration-cache n.onnx",
            "--output and --calibration-cache are the same file, 'n.onnx'",
        ),
    ]
    cases += [
        ("quantize", f"{run} --data d --dask tcp://a:1 --jobs 2", "--jobs requires --dask local: "),
    ]
    alone = ("--storage packed", "--data d", "--calibration-cache f", "--random-data 3", "--force")
    alone += ("--save_as_external_data", "--no-functions", "--allow-code", "--no-time")
    cases += [
        ("quantize", f"--print-config {one}", f"{one.split()[0]} requires --input and --output")
        for one in (*alone, *OF_DATA)
    ]
    return cases


@pytest.mark.parametrize(("tool", "options", "message"), _cases())
def test_an_option_in_vain_is_wrong_usage(
    tool: str, options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"tools.{tool}").main([*REQUIRED[tool].split(), *options.split()])
    errors = capsys.readouterr().err
    assert left.value.code == 2
    assert errors.startswith(f"tools.{tool}: error: {message}") and errors.count("\n") == 1


MEASURED = "integer activations; the formats here are"
SHARED = "integer activations or a table [finetune]; the formats here are"

WITH_A_SCHEME = [
    ("quantize", "MX9", "--calibrate-method MSE", f"--calibrate-method requires {MEASURED} mx9"),
    ("quantize", "MX9", "--set calibrate_method=MSE", f"--set calibrate_method requires {MEASURED} mx9"),
    (
        "quantize",
        "MX9",
        "--set activation_symmetric=true",
        "--set activation_symmetric requires ",
    ),
    ("quantize", "BF16", "--set moving_average=true", f"--set moving_average requires {MEASURED} bfloat16"),
    (
        "quantize",
        "U8S8",
        "--set percentile=99",
        "--set percentile requires integer activations and ca",
    ),
    ("quantize", "U8S8", "--set averaging_constant=0.5", "--set averaging_constant requires integer activ"),
    *(
        ("quantize", config, f"--set keep_float=true {options}", "--set keep_float requires activations th")
        for config, options in (
            ("W8", ""),
            ("FP16", "--target ort-cuda"),
            ("INT32", ""),
            ("U8S8", "--target openvino"),
            ("S16S8_MIXED_S8S8", "--data d"),
        )
    ),
    (
        "quantize",
        "W8",
        "--matmul-nbits",
        "--matmul-nbits requires integers in blocks (--set block_size=32); ",
    ),
    (
        "quantize",
        "BF16_MIXED_BFP16",
        "--embeddings int8",
        "--embeddings requires a scheme without mixed precision; ",
    ),
    (
        "quantize",
        "BF16",
        "--set block_size=32",
        "--set block_size requires integers; the formats here are bf",
    ),
    ("quantize", "BF16", "--per-channel", "--per-channel requires integers; the formats here are bfloat16"),
    ("quantize", "BF16", "--no-per-channel", "--no-per-channel requires integers; the formats here are"),
    (
        "quantize",
        "MX9",
        "--set weight_method=MSE",
        "--set weight_method requires integers; the formats",
    ),
    ("quantize", "FP16", "--qdq-domain com.microsoft", "--qdq-domain requires integers of up to 16 bits; "),
    ("quantize", "INT32", "--qdq-domain com.microsoft", "--qdq-domain requires integers of up to 16 bits; "),
    (
        "quantize",
        "A16W8",
        "--domain com.amd.quark",
        "--domain requires formats for which ONNX has no op",
    ),
    ("quantize", "BF16", "--set bfloat16_as=cast --domain com.amd.quark", "--domain requires formats for"),
    (
        "quantize",
        "MX9",
        "--data d --calibration-cache f",
        f"--calibration-cache requires {MEASURED} mx9",
    ),
    *(
        ("quantize", "MX9", f"--data d {one}", f"{one.split()[0]} requires {SHARED} mx9")
        for one in ("--jobs 1", "--dask local")
    ),
    (
        "quantize",
        "MX9",
        "--data d --memory-limit 1G",
        "--memory-limit requires integer activations or tuning; the formats here are mx9",
    ),
    (
        "auto_mixed_precision",
        "BF16_MIXED_BFP16",
        "--data d --calibration-cache f",
        f"--calibration-cache requires {MEASURED} bfloat16, bfp16",
    ),
    (
        "quantize",
        "W8",
        "--data d --resume r",
        "--resume requires weights of fewer than 7 bits, fit_weights = true or a",
    ),
    ("quantize", "BF16", "--allow-code", "--allow-code requires a scheme whose key evaluate names a file"),
    ("auto_mixed_precision", "BF16_MIXED_BFP16", "--allow-code", "--allow-code requires a scheme whose key"),
    ("auto_mixed_precision", "BF16_MIXED_BFP16", "--data d --labels f", "--labels requires --top1-target"),
    *(
        (
            tool,
            "BF16_MIXED_BFP16",
            "--set auto_mixed_precision.output_index=0",
            "--set auto_mixed_precision.output_index requires",
        )
        for tool in ("quantize", "auto_mixed_precision")
    ),
    *(
        (
            "auto_mixed_precision",
            "BF16_MIXED_BFP16",
            f"--analyze-only --data d --set {key}",
            f"--set {key.partition('=')[0]} requires --output",
        )
        for key in ("finetune.algorithm=gptq", "auto_mixed_precision.bits_target=8")
    ),
]


@pytest.mark.parametrize(("tool", "config", "options", "message"), WITH_A_SCHEME)
def test_an_option_in_vain_with_a_scheme_is_an_error(
    tool: str, config: str, options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--input", "m.onnx", "--config", config, *options.split()]
    given += [] if "--analyze-only" in given else ["--output", "n.onnx"]
    assert importlib.import_module(f"tools.{tool}").main(given) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"tools.{tool}: error: {message}") and errors.count("\n") == 1


@pytest.mark.parametrize("tool", REQUIRED)
def test_every_option_is_in_one_of_the_tables(tool: str) -> None:
    """So that one that is added is thought of."""
    names = {word: action.dest for action in parser_of(tool)._actions for word in action.option_strings}
    errors = [error for name, _, error in _cases() if name == tool]
    errors += [error for name, _, _, error in WITH_A_SCHEME if name == tool]
    refused = {names[word] for error in errors for word in error.split() if word in names}
    of_samples = WITH_IMAGES if "--data" in REQUIRED[tool].split() else set()
    assert {*ALWAYS[tool].split(), *refused, *of_samples, "help_all"} == set(names.values())


def test_options_of_data_are_all_that_say_something_of_data() -> None:
    common = set.intersection(*({*keywords(job)} for job in ("quantize", "finetune", "infer", "report")))
    options = {name: row for name, row in keywords("infer").items() if name in common}
    added = common - {"data", "states", "feeds", "threads", "output", "force", "progress"}
    assert added == {one.split()[0][2:].replace("-", "_") for one in OF_DATA}
    usual = {"limit", "mean", "std", "preprocess"}
    of_samples = {name for name, one in options.items() if one.group == SAMPLES} - {"states", "feeds"} | usual
    assert of_samples == {one.split()[0][2:].replace("-", "_") for one in OF_SAMPLES}
    assert all(options[name].group == RUNNING for name in added - of_samples)
