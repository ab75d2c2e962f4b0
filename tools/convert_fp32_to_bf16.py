"""Convert a float32 ONNX model to BF16: ``python -m tools.convert_fp32_to_bf16 --help``."""

from __future__ import annotations

import sys

from tools.options import bf16

main = bf16.converter("convert_fp32_to_bf16", __doc__, "float32")
"""Run the tool and return its exit code: 0 done, 1 model or machine error, 2 usage, 3 nothing done."""

if __name__ == "__main__":
    sys.exit(main())
