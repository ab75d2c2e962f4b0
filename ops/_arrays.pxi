# What NumPy callers use, through ops/bfloat16.py, ops/integers.py, ops/round_trip.py, ops/adaquant.py and
# ops/round_block.py, which check shapes and types and keep subnormal numbers.


cdef CLONED_VOID bfloat16_from_float(const float* source, uint16_t* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <uint16_t>bfloat16_bits(source[i])


cdef CLONED_VOID bfloat16_from_half(const uint16_t* source, uint16_t* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <uint16_t>bfloat16_bits(float_of_float16(source[i]))


cdef CLONED_VOID float_from_bfloat16(const uint16_t* source, float* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = float_of_bfloat16(source[i])


cdef CLONED_VOID half_from_bfloat16(const uint16_t* source, uint16_t* target, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = <uint16_t>float16_bits(float_of_bfloat16(source[i]))


def round_float32(const float[::1] source, uint16_t[::1] target):
    """Write the bfloat16 bits of float32 numbers."""
    if source.shape[0]:
        with nogil:
            bfloat16_from_float(&source[0], &target[0], source.shape[0])


def round_float16(const uint16_t[::1] source, uint16_t[::1] target):
    """Write the bfloat16 bits of float16 numbers, given by their bits."""
    if source.shape[0]:
        with nogil:
            bfloat16_from_half(&source[0], &target[0], source.shape[0])


def widen_to_float32(const uint16_t[::1] source, float[::1] target):
    """Write bfloat16 numbers, given by their bits, as float32."""
    if source.shape[0]:
        with nogil:
            float_from_bfloat16(&source[0], &target[0], source.shape[0])


def narrow_to_float16(const uint16_t[::1] source, uint16_t[::1] target):
    """Write bfloat16 numbers, given by their bits, as float16 bits."""
    if source.shape[0]:
        with nogil:
            half_from_bfloat16(&source[0], &target[0], source.shape[0])


def quantize_blocks(const uint8_t[::1] source, uint8_t[::1] target, int element_type, size_t outer, size_t length,
                    size_t inner, grid):
    """Quantize a tensor [outer, length, inner], given as bytes, in blocks along length; grid comes from a function below."""
    cdef BlockTask task
    cdef const uint8_t[::1] constants = grid
    if source.shape[0] == 0:
        return
    memcpy(&task.grid, &constants[0], sizeof(Grid))
    task.element_type = element_type
    task.source = &source[0]
    task.target = &target[0]
    task.outer = outer
    task.length = length
    task.inner = inner
    with nogil:
        run_blocks(&task)


cdef bytes grid_bytes(Grid grid):
    return (<const char*>&grid)[:sizeof(Grid)]


def bfp_grid(size_t block_size, int bit_width, int rounding_mode, bint compiler=False, bint bfloat16_first=False):
    """The constants of block floating point."""
    cdef Grid grid = compiler_grid(block_size, bit_width - 9, rounding_mode) if compiler \
        else plain_grid(block_size, bit_width - 9, rounding_mode)
    grid.bfloat16_first = bfloat16_first
    return grid_bytes(grid)


def microexponent_grid(size_t block_size, int bit_width, int rounding_mode, size_t sub_block_size, int shift_bits,
                       bint bfloat16_first=False):
    """The constants of Microexponents."""
    cdef Grid grid = prime_grid(block_size, bit_width - 9, rounding_mode, sub_block_size, shift_bits)
    grid.bfloat16_first = bfloat16_first
    return grid_bytes(grid)


def microscaling_grid(size_t block_size, str element_dtype, str scale_rule, int rounding_mode):
    """The constants of Microscaling."""
    cdef Element elements[ELEMENTS]
    fill_elements(elements)
    names = [elements[i].name.decode() for i in range(ELEMENTS)]
    rule = ("floor", "ceil", "even", "rceil").index(scale_rule)
    return grid_bytes(element_grid(block_size, &elements[<int>names.index(element_dtype)], rule, rounding_mode))


def round_linear(const float[::1] source, float[::1] target, int stored_type, float scale, int64_t zero_point):
    """Quantize with one scale and zero point, and dequantize again."""
    cdef uint32_t stored_tile[1024]
    cdef LinearTask task
    cdef size_t first, n, size = <size_t>source.shape[0]
    cdef const float* x = &source[0] if size else NULL
    cdef float* y = &target[0] if size else NULL
    task.stored_type = stored_type
    task.scale = &scale
    task.zero_point = &zero_point  # the low bytes of an integer come first, and a float's zero is 0
    task.channels = 1
    task.inner = 1024
    task.one_zero_point = True
    with nogil:
        for first in range(0, size, 1024):
            n = min(<size_t>1024, size - first)
            task.quantize = True
            task.source = x + first
            task.target = stored_tile
            linear_range(&task, 0, n)
            task.quantize = False
            task.source = stored_tile
            task.target = y + first
            linear_range(&task, 0, n)


def quantize_linear(const float[::1] source, uint8_t[::1] target, int stored_type, const float[::1] scale,
                    const uint8_t[::1] zero_point, size_t inner):
    """Quantize to numbers given as bytes; scale and zero_point of a channel hold for inner elements in a row."""
    cdef LinearTask task
    cdef size_t size = <size_t>source.shape[0]
    if size:
        task = [True, stored_type, &source[0], &target[0], &scale[0], &zero_point[0], <size_t>scale.shape[0], inner, False]
        with nogil:
            linear_range(&task, 0, size)


def dequantize_linear(const uint8_t[::1] source, float[::1] target, int stored_type, const float[::1] scale,
                      const uint8_t[::1] zero_point, size_t inner):
    """The way back from quantize_linear, with the same arguments for both sides."""
    cdef LinearTask task
    cdef size_t size = <size_t>target.shape[0]
    if size:
        task = [False, stored_type, &source[0], &target[0], &scale[0], &zero_point[0], <size_t>scale.shape[0], inner, False]
        with nogil:
            linear_range(&task, 0, size)


def walk_rows(const float[:, ::1] hessian, const float[:, :, ::1] fixed, const float[::1] factors, float[:, ::1] u,
              float[:, ::1] w, float[:, ::1] best, double[::1] best_factor, float[:, ::1] scratch, size_t[::1] places,
              int mantissa_bits, int least_exponent, size_t patience, bint learn_scale):
    """Go AdaQuant's steps for outputs [N, K] of a hessian [K, K]; see _gradient_steps.pxi.

    fixed is scale, lowest, highest and pace [4, N, K], scratch [6, K].
    """
    cdef Steps s
    cdef size_t row
    if u.shape[0] == 0 or u.shape[1] == 0 or factors.shape[0] == 0:
        return
    s.inputs, s.iterations, s.patience, s.learn_scale = u.shape[1], factors.shape[0], patience, learn_scale
    s.least = least_exponent + 127 << 23
    s.shift = (23 - mantissa_bits << 23) + (1 << 22)
    s.hessian, s.factors = &hessian[0, 0], &factors[0]
    s.mean, s.square, s.slope = &scratch[0, 0], &scratch[1, 0], &scratch[2, 0]
    s.pull, s.next, s.changes, s.places = &scratch[3, 0], &scratch[4, 0], &scratch[5, 0], &places[0]
    with nogil:
        for row in range(<size_t>u.shape[0]):
            s.scale, s.lowest, s.highest = &fixed[0, row, 0], &fixed[1, row, 0], &fixed[2, row, 0]
            s.pace, s.u, s.w, s.best = &fixed[3, row, 0], &u[row, 0], &w[row, 0], &best[row, 0]
            gradient_steps(&s, &best_factor[row])


def round_inputs(const double[:, :, ::1] reference, const double[:, :, ::1] factor, const double[:, :, ::1] scale,
                 const double[:, :, ::1] lowest, const double[:, :, ::1] highest, const size_t[::1] inputs,
                 double[:, :, ::1] rounded, double[:, :, ::1] change, int mantissa_bits, int least_exponent):
    """Round B inputs of groups [G, B, N]; see _rounding_blocks.pxi. rounded comes as base.

    The grid's arrays are [K, G, N], of which inputs [B] are these.
    """
    cdef Rounding64 rounding
    cdef size_t g, i, j, n = <size_t>rounded.shape[2]
    if n == 0:
        return
    rounding.least = <int64_t>(least_exponent + 1023) << 52
    rounding.shift = (<int64_t>(52 - mantissa_bits) << 52) + (<int64_t>1 << 51)
    with nogil:
        for g in range(<size_t>rounded.shape[0]):
            for j in range(<size_t>rounded.shape[1]):
                for i in range(j):
                    add_multiple(&rounded[g, j, 0], &change[g, i, 0], factor[g, i, j], n)
                i = inputs[j]
                round_input(&rounded[g, j, 0], &change[g, j, 0], &reference[g, j, 0], &scale[i, g, 0],
                            &lowest[i, g, 0], &highest[i, g, 0], rounding, n)


def scale_errors(const float[:, :, ::1] w, const float[:, :, ::1] counts, const float[:, ::1] scale,
                 const float[:, ::1] lowest, const float[:, ::1] highest, double[:, ::1] errors):
    """Add to the errors [S, channels] of S scales and limits; see _scale_errors.pxi. counts is that, or without numbers."""
    cdef size_t outer = <size_t>w.shape[0], channels = <size_t>w.shape[1], inner = <size_t>w.shape[2], k
    cdef const float* numbers
    cdef const float* weights
    cdef Scales of
    if outer == 0 or channels == 0 or inner == 0:
        return
    numbers = &w[0, 0, 0]
    weights = &counts[0, 0, 0] if counts.shape[0] else NULL
    with nogil:
        for k in range(<size_t>scale.shape[0]):
            of.scale, of.lowest, of.highest = &scale[k, 0], &lowest[k, 0], &highest[k, 0]
            if inner == 1:
                scale_errors_of_columns(numbers, weights, outer, channels, of, &errors[k, 0])
            else:
                scale_errors_of_rows(numbers, weights, outer, channels, inner, of, &errors[k, 0])
