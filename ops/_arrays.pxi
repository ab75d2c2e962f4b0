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


def round_float32(source, target):
    """Write the bfloat16 bits of float32 numbers."""
    cdef Array x = floats(source), y = halves(target, True)
    with nogil:
        bfloat16_from_float(<const float*>x.data, <uint16_t*>y.data, x.d0)


def round_float16(source, target):
    """Write the bfloat16 bits of float16 numbers, given by their bits."""
    cdef Array x = halves(source), y = halves(target, True)
    with nogil:
        bfloat16_from_half(<const uint16_t*>x.data, <uint16_t*>y.data, x.d0)


def widen_to_float32(source, target):
    """Write bfloat16 numbers, given by their bits, as float32."""
    cdef Array x = halves(source), y = floats(target, 1, True)
    with nogil:
        float_from_bfloat16(<const uint16_t*>x.data, <float*>y.data, x.d0)


def narrow_to_float16(source, target):
    """Write bfloat16 numbers, given by their bits, as float16 bits."""
    cdef Array x = halves(source), y = halves(target, True)
    with nogil:
        half_from_bfloat16(<const uint16_t*>x.data, <uint16_t*>y.data, x.d0)


def quantize_blocks(source, target, int element_type, size_t outer, size_t length, size_t inner, grid):
    """Quantize a tensor [outer, length, inner], given as bytes, in blocks along length; grid comes from a function below."""
    cdef BlockTask task
    cdef Array x = octets(source), y = octets(target, True), constants = octets(grid)
    if x.d0 == 0:
        return
    memcpy(&task.grid, constants.data, sizeof(Grid))
    task.element_type = element_type
    task.source = x.data
    task.target = y.data
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


def round_linear(source, target, int stored_type, float scale, int64_t zero_point):
    """Quantize with one scale and zero point, and dequantize again."""
    cdef uint32_t stored_tile[1024]
    cdef LinearTask task
    cdef Array source_array = floats(source), target_array = floats(target, 1, True)
    cdef size_t first, n, size = source_array.d0
    cdef const float* x = <const float*>source_array.data
    cdef float* y = <float*>target_array.data
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


def quantize_linear(source, target, int stored_type, scale, zero_point, size_t inner):
    """Quantize to numbers given as bytes; scale and zero_point of a channel hold for inner elements in a row."""
    cdef LinearTask task
    cdef Array x = floats(source), y = octets(target, True), s = floats(scale), z = octets(zero_point)
    if x.d0:
        task = [True, stored_type, x.data, y.data, <const float*>s.data, z.data, s.d0, inner, False]
        with nogil:
            linear_range(&task, 0, x.d0)


def dequantize_linear(source, target, int stored_type, scale, zero_point, size_t inner):
    """The way back from quantize_linear, with the same arguments for both sides."""
    cdef LinearTask task
    cdef Array x = octets(source), y = floats(target, 1, True), s = floats(scale), z = octets(zero_point)
    if y.d0:
        task = [False, stored_type, x.data, y.data, <const float*>s.data, z.data, s.d0, inner, False]
        with nogil:
            linear_range(&task, 0, y.d0)


def walk_rows(hessian, fixed, factors, u, w, best, best_factor, scratch, places, int mantissa_bits,
              int least_exponent, size_t patience, bint learn_scale):
    """Go AdaQuant's steps for outputs [N, K] of a hessian [K, K]; see _gradient_steps.pxi.

    fixed is scale, lowest, highest and pace [4, N, K], scratch [6, K].
    """
    cdef Steps s
    cdef Array h = floats(hessian, 2), f = floats(fixed, 3), steps = floats(factors), ups = floats(u, 2, True)
    cdef Array weights = floats(w, 2, True), bests = floats(best, 2, True), chosen = doubles(best_factor, 1, True)
    cdef Array work = floats(scratch, 2, True), order = Array(places, "u", sizeof(size_t), 1, True)
    cdef size_t row, k = ups.d1, n = ups.d0
    cdef const float* constants = <const float*>f.data
    cdef float* lines = <float*>work.data
    if n == 0 or k == 0 or steps.d0 == 0:
        return
    s.inputs, s.iterations, s.patience, s.learn_scale = k, steps.d0, patience, learn_scale
    s.least = least_exponent + 127 << 23
    s.shift = (23 - mantissa_bits << 23) + (1 << 22)
    s.hessian, s.factors = <const float*>h.data, <const float*>steps.data
    s.mean, s.square, s.slope = lines, lines + k, lines + 2 * k
    s.pull, s.next, s.changes, s.places = lines + 3 * k, lines + 4 * k, lines + 5 * k, <size_t*>order.data
    with nogil:
        for row in range(n):
            s.scale, s.lowest = constants + row * k, constants + (n + row) * k
            s.highest, s.pace = constants + (2 * n + row) * k, constants + (3 * n + row) * k
            s.u, s.w, s.best = <float*>ups.data + row * k, <float*>weights.data + row * k, <float*>bests.data + row * k
            gradient_steps(&s, <double*>chosen.data + row)


def round_inputs(reference, factor, scale, lowest, highest, inputs, rounded, change, int mantissa_bits,
                 int least_exponent):
    """Round B inputs of groups [G, B, N]; see _rounding_blocks.pxi. rounded comes as base.

    The grid's arrays are [K, G, N], of which inputs [B] are these.
    """
    cdef Rounding64 rounding
    cdef Array made = doubles(rounded, 3, True), changes = doubles(change, 3, True), wanted = doubles(reference, 3)
    cdef Array factors = doubles(factor, 3), scales = doubles(scale, 3), low = doubles(lowest, 3)
    cdef Array high = doubles(highest, 3), order = Array(inputs, "u", sizeof(size_t), 1)
    cdef size_t g, i, j, own, at, groups = made.d0, count = made.d1, n = made.d2
    cdef double* y = <double*>made.data
    cdef double* d = <double*>changes.data
    if n == 0:
        return
    rounding.least = <int64_t>(least_exponent + 1023) << 52
    rounding.shift = (<int64_t>(52 - mantissa_bits) << 52) + (<int64_t>1 << 51)
    with nogil:
        for g in range(groups):
            for j in range(count):
                own = (g * count + j) * n
                for i in range(j):
                    add_multiple(y + own, d + (g * count + i) * n,
                                 (<const double*>factors.data)[(g * factors.d1 + i) * factors.d2 + j], n)
                at = ((<const size_t*>order.data)[j] * groups + g) * n
                round_input(y + own, d + own, <const double*>wanted.data + own, <const double*>scales.data + at,
                            <const double*>low.data + at, <const double*>high.data + at, rounding, n)


def scale_errors(w, counts, scale, lowest, highest, errors):
    """Add to the errors [S, channels] of S scales and limits; see _scale_errors.pxi. counts is that, or without numbers."""
    cdef Array x = floats(w, 3), weighted = floats(counts, 3), scales = floats(scale, 2), low = floats(lowest, 2)
    cdef Array high = floats(highest, 2), sums = doubles(errors, 2, True)
    cdef size_t outer = x.d0, channels = x.d1, inner = x.d2, k
    cdef const float* numbers = <const float*>x.data
    cdef const float* weights = <const float*>weighted.data if weighted.d0 else NULL
    cdef double* own
    cdef Scales of
    if outer == 0 or channels == 0 or inner == 0:
        return
    with nogil:
        for k in range(scales.d0):
            of.scale = <const float*>scales.data + k * scales.d1
            of.lowest = <const float*>low.data + k * low.d1
            of.highest = <const float*>high.data + k * high.d1
            own = <double*>sums.data + k * sums.d1
            if inner == 1:
                scale_errors_of_columns(numbers, weights, outer, channels, of, own)
            else:
                scale_errors_of_rows(numbers, weights, outer, channels, inner, of, own)
