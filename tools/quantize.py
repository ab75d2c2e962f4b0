"""Quantize a float ONNX model to any number format: ``python -m tools.quantize --help``."""

from __future__ import annotations

import sys

from onnx_narrow.options.quantize import SCHEME_KEYS
from tools.cli.calls import keep_products_on_one_thread
from tools.cli.command_line import DONE, Tool
from tools.cli.job import Job
from tools.cli.schemes import why_no_scheme
from tools.cli.shared_help import GATE_HELP, SAMPLES_HELP

_COMMANDS = """\
--input m.onnx --output q.onnx --target ort-cpu --data photos --mean 127.5 --std 127.5
m.onnx q.onnx --config A8W8 --data samples
--config MX9 --print-config"""

_BRIEF = """\
presets (activation and weight):
  A8W8 A16W8                    symmetric integers, Concats on one scale
  XINT8                         A8W8 on scales that are powers of two, one for each tensor
  U8S8 U16S8                    asymmetric activations: mostly better, if the target supports them
  W4A8                          int8 activations, int4 weights with a scale per channel
  A8W8_DYNAMIC                  activations rounded at run time, no samples: text and speech on CPUs
  W8 W4 W2 W4_MIXED             weights alone: int8 per channel; int4 or uint4, int2 in blocks of 32
  FOUND                         weights that lie on a grid already, kept on it: no number changes
  BF16 FP16                     every value in bfloat16 or float16
  BFP16 MX4 MX6 MX9             block floating point, Microexponents
  MXINT8 MXFP8E4M3 MXFP8E5M2 MXFP6E3M2 MXFP6E2M3 MXFP4E2M1       OCP Microscaling
  BF16_BFP16 BF16_MXINT8 BF16_MIXED_BFP16 BF16_MIXED_MXINT8     bfloat16, dot products in blocks
  S16S8_MIXED_S8S8              A16W8, layers in A8W8 as long as SQNR falls by at most 3 dB
  INT32 UINT32                  for experiments
  NAME_ADAQUANT NAME_ADAROUND   the same, weights tuned on the samples; not of 32 bits, and
                                NAME_ADAROUND only of A8W8 A16W8 XINT8 U8S8 U16S8 W4A8 W8 W4 W2"""

_DETAILS = f"""\
With --data, weights of fewer than 7 bits are rounded by outputs of layers, unless --fast is given. A result
is run once before it is saved: a node that ONNX Runtime computes wrongly is left in float, a model that does
not run is refused, and outputs below 10 dB are a warning. --set block_size=32 (16 to 256) gives integer
weights a scale for so many numbers along the sum; --matmul-nbits writes products with them as MatMulNBits of
ONNX Runtime, --embeddings int8 stores embeddings, and the heads tied to them, as GatherBlockQuantized.

A file begins with preset = "NAME", or gives activation and weight; --print-config shows all keys. Its tables
[layers] (node name, glob or operator type) and [tensors] give single layers and tensors other formats,
[finetune] tunes the weights afterwards, as tools.finetune does; [auto_mixed_precision] gives layers cheaper
formats as far as a target allows, as tools.auto_mixed_precision does. Its key evaluate names a Python file
that is run: announced on stderr, and refused outside the scheme's folder without --allow-code.

--export-ranges writes what was chosen for each tensor that became integers: format, scale, zero point, the
range that these cover and the lowest and highest number seen, in readable JSON; to a file that ends in
.encodings, in the form that AIMET writes and Qualcomm's tools read (version 0.6.1). --ranges takes either
form: tensors in it have exactly these scales and zero points, the others are measured; constants must be
those that the file was made of, with their own lowest and highest number. What a scheme leaves to the outputs
follows rules then, as with --fast. Weights of few bits are exported with --fast only: samples change their
scales.

--min-sqnr and --top1 hold out every fourth sample, at most 32, and quantize with the others; of fewer than 16
samples they hold out every third, of fewer than 12 every second, of fewer than four none: all do both. Layers
are ranked by the error that each makes alone in the outputs; as few of the worst as are found get the formats
of --fallback, and the model is quantized anew until the held-out samples show the target:
10 log10(sum f^2 / sum (f - q)^2) of each float output that is not a cache. The figure less its standard
error by the jackknife over samples has to reach it, so that it holds for other samples. The summary names
these layers. If no choice is enough, or samples are too few to show it, nothing is written, unless
--allow-miss is given. Not with tables [finetune] and [auto_mixed_precision].

--target ort-cpu leaves layers in float that are faster so on this machine, with the conversions around them:
layers that lose time by the profiles of the float and the quantized model are tried, and models take turns.
What counts is the processor's time, on one thread unless --threads says more.
The model is held against the same scheme without the target, too: what that does better, tensors in float
among it, is taken over where it is no slower, and a model more than 1 dB below says so. Below 10 dB layers
in float are searched as for --min-sqnr.
Not with --no-time, --fast or --set keep_float=false. Layers are named in the recorded scheme, with which the
same model is made again without timing anything.

quantized values: integers reach dot products (Conv, ConvTranspose, Gemm, MatMul) and the sums, products,
activations, pools and Concats around them, but not the inside of normalizations and Softmax, masks, or
arithmetic on shapes; block formats reach the operands of dot products; bfloat16 and float16 reach every
value (float16 saturates at +-65504; tensors whose infinities the model looks for, as a guard of a masked
Softmax does, stay float32). --set quantize_all_op_types=true lets every format reach every value. No
format reaches positions: angles, indices and comparisons that are computed of integers by arithmetic alone.

A folder as --input is converted to a folder: each .onnx file in it, the others are copied. Samples of the
model NAME.onnx may lie in DIR/NAME.

{GATE_HELP}

{SAMPLES_HELP}

exit codes: 0 done; 1 error in the model, the data or the machine; 2 usage; 3 nothing to quantize, or
--min-sqnr, --top1 or --metric is not met: no file is written.
"""


_NEED_NO_MODEL = {"print_config", "config", "target", "assignments", "verbose", "fast", *SCHEME_KEYS}
"""Options that define the scheme."""


def _work(job: Job) -> int:
    keep_products_on_one_thread()
    from tools.options.package import convert

    if job.get("print_config"):
        _print_config(job)
    return convert(job) if job.get("model") else DONE


def _print_config(job: Job) -> None:
    from onnx_narrow.api.quantize_work import asked_scheme
    from tools.cli.printed import Printed
    from transforms.run.events import SILENT

    scheme = asked_scheme(job.keywords(), SILENT if job.get("model") else Printed())  # warned of later
    print(scheme.to_toml(), end="")


def _why_not(job: Job) -> str | None:
    is_printed, places = job.get("print_config"), {"--input": "model", "--output": "output"}
    missing = [option for option, name in places.items() if not (job.get(name) or is_printed)]
    if reason := why_no_scheme(job, *missing):
        return reason
    if bool(job.get("model")) != bool(job.get("output")):
        return "--input and --output require each other"
    vain = (
        [] if job.get("model") else [job.written[name] for name in job.values if name not in _NEED_NO_MODEL]
    )
    return f"{vain[0]} requires --input and --output" if vain else None


main = Tool("quantize", "quantize", __doc__, _COMMANDS, _DETAILS, _BRIEF, _work, _why_not)
"""Run the tool and return its exit code: 0 done, 1 model or data error, 2 usage error, 3 nothing done."""


if __name__ == "__main__":
    sys.exit(main())
