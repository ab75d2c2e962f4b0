#!/bin/sh
# Build the extension with AddressSanitizer and UndefinedBehaviorSanitizer in a temporary folder and run the operator
# tests on it: tests/sanitize.sh [PYTHON] [pytest arguments]. Needs gcc with its sanitizer libraries. Leaks are not
# looked for, because Python itself keeps memory until it ends.
set -eu
python=${1:-python}
[ $# -gt 0 ] && shift
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM
mkdir "$folder/project"
cd "$root"
cp -R onnx_narrow ops tests tools transforms setup.py pyproject.toml "$folder/project"
rm -f "$folder/project/ops/"_library*.so "$folder/project/ops/_library.c"
[ -d "$root/../shared" ] && ln -s "$root/../shared" "$folder/shared"
cd "$folder/project"
touch README.md LICENSE
"$python" -m pip install --quiet --target "$folder/build" cython setuptools
NARROW_BUILD=sanitize PYTHONPATH="$folder/build" "$python" setup.py --quiet build_ext --inplace
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 PYTHONPATH=. \
    "$python" -m pytest -q -p no:cacheprovider tests/ops/test_blocks.py tests/ops/test_blocks_borders.py tests/ops/test_linear.py \
    tests/ops/test_attributes.py tests/ops/test_bfloat16.py tests/ops/test_concurrency.py tests/ops/test_formats.py \
    tests/ops/test_integers.py tests/ops/test_scale_errors.py tests/ops/test_histograms.py \
    tests/ops/test_channel_sums.py "$@"
