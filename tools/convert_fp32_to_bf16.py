"""Convert a float32 ONNX model to BF16: ``python -m tools.convert_fp32_to_bf16 --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tools.options import bf16


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code: 0 done, 1 model or machine error, 2 usage, 3 nothing done."""
    return bf16.run("convert_fp32_to_bf16", __doc__, "float32", argv)


if __name__ == "__main__":
    sys.exit(main())
