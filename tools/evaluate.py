"""Compare the results of a quantized model with its baseline's: ``python -m tools.evaluate --help``."""

from __future__ import annotations

import sys

from tools.cli.command_line import Tool

_COMMANDS = """\
--baseline_results_folder a --quantized_results_folder b
--baseline_results_folder a --quantized_results_folder b --labels labels.npy
--baseline_results_folder a --quantized_results_folder b --csv files.csv"""

_DETAILS = """\
Results are .npy, .png and .jpg files of equal names in both folders. Those of several outputs lie in one
sub-folder per output, as `python -m tools.infer` writes them, and are compared output by output.

definitions, for baseline x and quantized y with n elements:
  cos similarity  x.y / (|x| |y|), 1 for equal arrays, also if both are zero
  l2 distance     sqrt(sum((x - y)^2)), not divided by n
  psnr            10 log10(peak^2 n / sum((x - y)^2)) dB; the peak is 255 for arrays of type uint8 (8-bit
                  images) and the largest magnitude of the baseline array otherwise, unless --peak sets it
  ssim            mean structural similarity of scikit-image (uniform window of 7 x 7) with that peak as data
                  range, for images: [H, W], [C, H, W], [H, W, C] with 1, 3 or 4 channels, and batches of them
  sqnr            10 log10(sum(x^2) / sum((x - y)^2)) dB
--metric tells one of sqnr, top1, kl, cosine, f1 or of a function in a Python file, as of tools.quantize, with
its standard error over samples; with --min-metric or --max-loss, exit code 3 says that it is missed.
Equal arrays have a psnr and sqnr of inf, and so does a mean over files of which one is equal. Files with NaN
or infinite elements are counted, excluded from mean and worst values, and set exit code 1. In JSON, inf is
the string "inf" and an excluded value is null; in CSV, "inf" and empty. Files of integers beside files of
other numbers, such as class numbers beside boxes, have a line and do not enter mean and worst values."""


main = Tool("evaluate", "evaluate", __doc__, _COMMANDS, _DETAILS)
"""Run the tool and return its exit code."""


if __name__ == "__main__":
    sys.exit(main())
