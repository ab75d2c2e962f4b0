"""Losses and costs of language models: ``python -m tests.benchmarks.bench_language [MODEL SAMPLES TEXTS]``.

MODEL is a decoder with ``input_ids``, caches and an output ``logits``; SAMPLES and TEXTS are folders of
samples, to quantize with and to judge on. Without them: a small decoder of random weights. ``--rows`` chooses
rows. Each of ours is a command of the tools; those of onnxruntime are left out where its quantizer needs a
package that is not there (``pip install onnx_ir``). Seconds of the processor and the peak of memory are those
of the process that quantizes; decoding is a step of one token behind a cache, in turns with the float model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx

from tests.benchmarks.decoding import decoding_time
from tests.helpers.decoder import WORDS, decoder
from transforms.compare.compare_results import pair_files
from transforms.compare.language import compare_logits
from transforms.run.workers import open_processes

_ROUNDED = "--set found=false"  # its weights are in few bits already
_TABLE = "--embeddings float"
_W4 = f"quantize --config W4 --matmul-nbits {_ROUNDED}"
_BLOCKS = (32, 64, 128)
_METHODS = ("RTN", "RTN-symmetric", "k-quant")
ROWS = {
    "BF16 with Casts": "convert_fp32_to_bf16",
    "W8": f"quantize --config W8 {_ROUNDED} {_TABLE}",
    "W4, weights as they were": "quantize --config W4 --matmul-nbits",
    "W4": f"{_W4} {_TABLE} --accuracy-level 1",
    "W4, kernels of level 4": f"{_W4} {_TABLE} --accuracy-level 4",
    "W4, defaults": _W4,
    "W4, embeddings int8": f"{_W4} --embeddings int8 --accuracy-level 1",
    "W4, embeddings int8, level 4": f"{_W4} --embeddings int8 --accuracy-level 4",
    "W4 with samples": f"{_W4} {_TABLE} --accuracy-level 1 --data {{samples}}",
    **{f"W4, blocks of {size}": f"{_W4} --set block_size={size}" for size in _BLOCKS[1:]},
    **{
        f"W4, uint4, blocks of {size}": f"{_W4} --set block_size={size} --set weight='uint4'"
        for size in _BLOCKS
    },
    "MX6, packed": "quantize --config MX6 --storage packed",
    "A8W8": "quantize --config A8W8 --data {samples}",
    **{f"onnxruntime {name}": f"onnxruntime {name} 32" for name in _METHODS},
    **{
        f"onnxruntime {name}, blocks of {size}": f"onnxruntime {name} {size}"
        for size in _BLOCKS[1:]
        for name in _METHODS
    },
}
"""Rows of the table: the command of a tool, or a method of onnxruntime's quantizer and its blocks."""

_ORT = """
import sys
import numpy as np
import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as quantizer
from onnxruntime.quantization.neural_compressor import weight_only
write = weight_only.make_matmul_weight_only_node
def write_whole_bytes(*, zero_point, k_blocks, **given):
    # onnxruntime 1.32 stops at an odd number of blocks: zero points of a row fill whole bytes
    node, stored = write(zero_point=None, k_blocks=k_blocks, **given)
    rows = np.pad(zero_point.reshape(-1, k_blocks), ((0, 0), (0, k_blocks % 2)))
    packed = (rows[:, ::2] | rows[:, 1::2] << 4).astype(np.uint8)
    stored.append(onnx.numpy_helper.from_array(packed, stored[0].name + "_zero_points"))
    node.input.append(stored[-1].name)
    return node, stored
weight_only.make_matmul_weight_only_node = write_whole_bytes
source, target, method, block = sys.argv[1:]
config = quantizer.KQuantWeightOnlyQuantConfig() if method == "k-quant" else None
model, symmetric = onnx.load(source), method == "RTN-symmetric"
options = {"block_size": int(block), "is_symmetric": symmetric, "algo_config": config}
made = quantizer.MatMulNBitsQuantizer(model, **options)
made.process()
domain = "com.microsoft"  # k-quant leaves out that it is in use
if all(one.domain != domain for one in made.model.model.opset_import):
    made.model.model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
made.model.save_model_to_file(target, True)
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path, metavar="MODEL SAMPLES TEXTS")
    parser.add_argument("--rows", nargs="*", choices=[*ROWS], default=[*ROWS])
    parser.add_argument("--limit", type=int, default=12, help="texts to judge on")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        model, samples, texts = options.files or _example(work)
        _infer(model, texts, options.limit, work / "float")
        print("| | MB | perplexity | KL | same | CPU s | peak MB | decode, x float |\n|" + "---|" * 8)
        for row in options.rows:
            (work / "made").mkdir()
            path = work / "made" / "model.onnx"
            cost = _quantize(ROWS[row], model, path, samples)
            if cost is not None:
                try:
                    figures = _figures(model, path, texts, options.limit, work, cost)
                except subprocess.CalledProcessError as error:
                    figures = f"does not run: {error.stderr.decode().strip().splitlines()[-1]}"
                print(f"| {row} | {figures} |", flush=True)
            shutil.rmtree(work / "made")


def _figures(model: Path, path: Path, texts: Path, limit: int, work: Path, cost: tuple[float, float]) -> str:
    """Return the cells of a row; ``cost``: seconds and MB."""
    _infer(path, texts, limit, work / "quantized")
    found = compare_logits(pair_files(work / "float", work / "quantized"), "logits", texts)
    shutil.rmtree(work / "quantized")
    size = sum(one.stat().st_size for one in path.parent.iterdir()) / 1e6
    after = found.perplexity[1] if found.perplexity else float("nan")
    cells = f"{size:.1f}", f"{after:.2f}", f"{found.kl:.4f}", f"{found.same:.1%}", f"{cost[0]:.1f}"
    with open_processes(1) as executor:  # memory of this process counts as that of those that it starts
        decoding = executor.submit(decoding_time, model, path, texts).result()
    return " | ".join((*cells, f"{cost[1]:.0f}", f"{decoding:.2f}"))


def _quantize(how: str, model: Path, path: Path, samples: Path) -> tuple[float, float] | None:
    """Make a model; return the seconds of the processor that it takes, and the peak of memory in MB.

    None where a package is missing.
    """
    tool, *options = how.split()
    if tool != "onnxruntime":
        words = [one.format(samples=samples) for one in options]
        given = ["-m", f"tools.{tool}", "--input", str(model), "--output", str(path), "--no-time", *words]
    elif find_spec("onnx_ir"):
        given = ["-c", _ORT, str(model), str(path), *options]
    else:
        return None
    process = subprocess.Popen([sys.executable, *given], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{how}: {said[-2000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def _infer(model: Path, texts: Path, limit: int, folder: Path) -> None:
    words = ["--input", str(model), "--data", str(texts), "--output", str(folder), "--limit", str(limit)]
    command = [sys.executable, "-m", "tools.infer", *words, "--output-names", "logits"]
    subprocess.run(command, check=True, capture_output=True)


def _example(work: Path) -> tuple[Path, Path, Path]:
    onnx.save(decoder(), work / "decoder.onnx")
    for seed, name in enumerate(("samples", "texts")):
        (work / name).mkdir()
        np.save(work / name / "tokens.npy", np.random.default_rng(seed).integers(0, WORDS - 1, (8, 48)))
    return work / "decoder.onnx", work / "samples", work / "texts"


if __name__ == "__main__":
    main()
