# Block formats on arrays: block floating point, Microexponents and Microscaling are one algorithm with other constants.
#
#   1. The largest magnitude of a block gives the block's exponent E, that of a group inside the block the group's own
#      exponent, which is taken to be at most ``span`` below E. (One group per block, except for Microexponents.)
#   2. Elements are scaled by 2^-E of their group into (-2, 2), so that the rest does not depend on the block.
#   3. Each is rounded to a multiple of a step: fixed, or (floating elements) given by the element's own exponent.
#      Adding and subtracting C = 1.5 * 2^23 steps rounds half to even; other ways of rounding correct its ties.
#   4. Clamp, scale back, put the sign on.
#
#   block with        bfp, mx                          Microexponents
#   Inf or NaN        passed through, not counted      all NaN
#   zeros only        stays zero, sign kept            the same
#   subnormals        count as exponent -127           flushed to zero, sign kept
#
# A tile of blocks is copied to scratch memory on the stack, widened to float32, quantized there and copied out: the
# source is never written, and no buffer of the tensor's size exists. Three ways through a tensor: rows (blocks lie in
# memory one after the other), columns (neighbours in memory belong to neighbouring blocks), and one block at a time for
# sizes that the other two do not take.

cdef enum Rounding:  # of ties
    HALF_AWAY = 0
    HALF_UP = 1
    HALF_EVEN = 2

cdef enum:
    STREAM_FROM = 1 << 22  # elements: 16 MB

cdef enum Layout:
    ROWS
    COLUMNS
    SINGLE

cdef enum Kind:
    PLAIN  # elements are multiples of one step
    PRIME  # the same, with the special cases of Microexponents
    FLOATING  # elements have exponents of their own

cdef struct Grid:
    Kind kind
    size_t block_size
    size_t group_size  # divides block_size
    int span  # a group's exponent is at least the block's minus this
    int rounding
    int element_span  # the exponent of a floating element is at least the block's minus this
    int bits  # of an element's significand, the leading one included
    int carry  # added to the bits of the largest magnitude before its exponent is taken: the scale rule
    float highest  # clamp, in units of 2^E
    float lowest
    bint bfloat16_first
    bint grow  # E grows by one where a positive element would round to 2^(E+1)

cdef struct BlockTask:
    Grid grid
    int element_type  # FLOAT32, FLOAT16 or BFLOAT16
    const void* source
    void* target
    size_t outer  # the tensor is [outer, length, inner]; blocks run along length
    size_t length
    size_t inner
    Layout layout
    size_t tile  # elements of a fibre in one unit (ROWS), or fibres side by side in one unit (COLUMNS)
    size_t tiles  # units along a fibre (ROWS, SINGLE), or along inner (COLUMNS)
    size_t units  # independent pieces of work
    bint streams  # write past the caches, because the tensor does not fit into them

cdef extern from *:
    """
    #define ROW_TILE 1024
    #define COLUMN_TILE 4096
    #define MOST_LANES 512
    #if defined(_MSC_VER)
    #define ALIGNED __declspec(align(64))
    #else
    #define ALIGNED __attribute__((aligned(64)))
    #endif
    typedef struct {
        ALIGNED float x[ROW_TILE];
        ALIGNED int32_t a[ROW_TILE];
        ALIGNED int32_t b[ROW_TILE];
        ALIGNED int32_t c[ROW_TILE];
        ALIGNED int32_t d[ROW_TILE];
    } RowScratch;
    typedef struct {
        ALIGNED float x[COLUMN_TILE];
        ALIGNED int32_t block[MOST_LANES];
        ALIGNED int32_t group[MOST_LANES];
        ALIGNED float down[MOST_LANES];
        ALIGNED float up[MOST_LANES];
    } ColumnScratch;

    #if defined(__GNUC__)
    #define prefetch(address) __builtin_prefetch(address)
    #else
    #define prefetch(address) ((void)0)
    #endif

    #if defined(__SSE2__)
    #include <emmintrin.h>
    /* Copy floats past the caches: what is written is not read again soon, and the lines need not be fetched first. */
    static inline void stream_floats(float *target, const float *source, size_t n) {
        size_t i = 0;
        for (; i < n && ((uintptr_t)(target + i) & 63); i++) target[i] = source[i];
        for (; i + 16 <= n; i += 16)
            for (size_t j = 0; j < 16; j += 4) _mm_stream_ps(target + i + j, _mm_loadu_ps(source + i + j));
        for (; i < n; i++) target[i] = source[i];
    }
    #define stream_fence() _mm_sfence()
    #else
    #define stream_floats(target, source, n) memcpy(target, source, (n) * sizeof(float))
    #define stream_fence() ((void)0)
    #endif
    """
    void stream_floats(float* target, const float* source, size_t n) noexcept nogil
    void stream_fence() noexcept nogil
    void prefetch(const void* address) noexcept nogil
    enum:
        ROW_TILE
        COLUMN_TILE
        MOST_LANES
    ctypedef struct RowScratch:
        float* x
        int32_t* a
        int32_t* b
        int32_t* c
        int32_t* d
    ctypedef struct ColumnScratch:
        float* x
        int32_t* block
        int32_t* group
        float* down
        float* up


# Single numbers ---------------------------------------------------------------------------------------------------

cdef inline int32_t larger(int32_t a, int32_t b) noexcept nogil:
    return a if a > b else b


cdef inline int32_t counted_magnitude(float x, bint poisoned) noexcept nogil:
    """The bits of |x|; zero for Inf and NaN, unless they poison the block."""
    cdef int32_t magnitude = <int32_t>(bits_of(x) & MAGNITUDE)
    cdef int32_t highest = <int32_t>(MAGNITUDE if poisoned else EXPONENT - 1)
    return magnitude if magnitude <= highest else 0


cdef inline int32_t exponent_field(int32_t magnitude, int32_t carry) noexcept nogil:
    """The biased exponent of a magnitude after the carry. What lies below 2^-127 counts as 2^-127, field 0."""
    cdef int32_t least = <int32_t>MIN_NORMAL
    cdef int32_t subnormal = magnitude if magnitude < least else least
    cdef int32_t fraction = larger(2 * subnormal - least, 0)  # of a number from 2^-127 to 2^-126
    return ((fraction if magnitude < least else magnitude) + carry) >> 23


cdef inline int32_t group_field(int32_t field, int32_t block, int32_t span) noexcept nogil:
    """The biased exponent of a group in a block; 255 is the mark of a poisoned block."""
    return 255 if block == 255 else larger(field, block - span)


cdef inline float scale_down(int32_t field, bint poisoned) noexcept nogil:
    """2^-E for the biased exponent of a group, where 255 means 2^-128, or NaN for a poisoned block."""
    cdef uint32_t top = 0x7FC00000 if poisoned else 0x00200000
    cdef uint32_t bits = <uint32_t>(254 - field) << 23
    return float_of(bits if field < 254 else (<uint32_t>0x00400000 if field == 254 else top))


cdef inline float scale_up(int32_t field) noexcept nogil:
    """2^(E-1), half of the scale, because 2^128 is not a float32."""
    cdef uint32_t bits = <uint32_t>(field - 1) << 23
    return float_of(bits if field > 1 else (<uint32_t>0x00200000 << (field & 1)))


cdef inline float round_element(float x, float down, float up, Grid grid, Kind kind, int rounding) noexcept nogil:
    cdef uint32_t bits = bits_of(x)
    cdef float scaled = (<float>0.0 if kind == PRIME and bits & MAGNITUDE < MIN_NORMAL else x) * down
    cdef int32_t own = 127 << 23  # the exponent that the step belongs to, in place
    if kind == FLOATING:
        own = larger(<int32_t>(bits_of(scaled) & EXPONENT), (127 - grid.element_span) << 23)
    cdef float magic = float_of((<uint32_t>own + (<uint32_t>(24 - grid.bits) << 23)) | 0x00400000)
    cdef float rounded = (scaled + magic) - magic
    cdef float tie = float_of((<uint32_t>own - (<uint32_t>grid.bits << 23)))  # half a step
    if rounding == HALF_AWAY:
        tie = float_of(bits_of(tie) | (bits & SIGN))
    if rounding != HALF_EVEN:
        rounded = rounded + (tie + tie) if scaled - rounded == tie else rounded
    cdef float clamped = grid.highest if rounded > grid.highest else rounded
    clamped = grid.lowest if clamped < grid.lowest else clamped
    clamped = clamped if bits & MAGNITUDE < EXPONENT else scaled  # Inf and NaN pass
    return float_of((bits_of((clamped + clamped) * up) & MAGNITUDE) | (bits & SIGN))


# Between a tensor and scratch memory -------------------------------------------------------------------------------

cdef inline void load_run(const BlockTask* task, size_t start, float* target, size_t n) noexcept nogil:
    cdef size_t i
    if task.element_type == FLOAT32:
        memcpy(target, <const float*>task.source + start, n * sizeof(float))
    elif task.element_type == FLOAT16:
        for i in range(n):
            target[i] = widen((<const float16_t*>task.source)[start + i])
    else:
        for i in range(n):
            target[i] = widen((<const bfloat16_t*>task.source)[start + i])
    if task.grid.bfloat16_first:
        for i in range(n):
            target[i] = float_of_bfloat16(bfloat16_bits(target[i]))


cdef inline void store_run(const BlockTask* task, size_t start, const float* source, size_t n) noexcept nogil:
    cdef size_t i
    if task.streams:
        stream_floats(<float*>task.target + start, source, n)
    elif task.element_type == FLOAT32:
        memcpy(<float*>task.target + start, source, n * sizeof(float))
    elif task.element_type == FLOAT16:
        for i in range(n):
            (<uint16_t*>task.target)[start + i] = <uint16_t>float16_bits(source[i])
    else:
        for i in range(n):
            (<uint16_t*>task.target)[start + i] = <uint16_t>bfloat16_bits(source[i])


# Rows: blocks one after the other ----------------------------------------------------------------------------------

cdef inline void halve(const int32_t* a, int32_t* b, size_t n) noexcept nogil:
    """Write the larger of each of n pairs."""
    cdef size_t i
    for i in range(n):
        b[i] = larger(a[2 * i], a[2 * i + 1])


cdef inline void twice(const int32_t* a, int32_t* b, size_t n) noexcept nogil:
    """Write each of n numbers two times."""
    cdef size_t i
    for i in range(n):
        b[2 * i] = a[i]
        b[2 * i + 1] = a[i]


cdef inline int32_t* spread(int32_t* a, int32_t* b, size_t n, size_t full) noexcept nogil:
    """Repeat each of n numbers until there are full of them; a and b are used in turns."""
    while n < full:
        twice(a, b, n)
        a, b = b, a
        n *= 2
    return a


cdef inline int32_t* row_fields(Grid grid, const float* x, RowScratch* s, size_t n, Kind kind) noexcept nogil:
    """Return the biased exponent of each group of a row. Sizes are powers of two: pairs, pairs of pairs and so on."""
    cdef int32_t* a = s.a
    cdef int32_t* b = s.b
    cdef size_t i, width = grid.group_size
    for i in range(n):
        a[i] = counted_magnitude(x[i], kind == PRIME)
    while width > 1:
        n //= 2
        width //= 2
        halve(a, b, n)
        a, b = b, a
    for i in range(n):
        a[i] = exponent_field(a[i], grid.carry)
    return raised_fields(grid, a, b, s.c, n) if kind == PRIME else a


cdef inline int32_t* raised_fields(Grid grid, int32_t* a, int32_t* b, int32_t* fields, size_t n) noexcept nogil:
    """Raise the exponents of groups to the least that the exponents of their blocks allow."""
    cdef size_t i, count = n
    for i in range(n):
        fields[i] = a[i]
    while count * grid.block_size > n * grid.group_size:
        count //= 2
        halve(a, b, count)
        a, b = b, a
    a = spread(a, b, count, n)
    for i in range(n):
        a[i] = group_field(fields[i], a[i], grid.span)
    return a


cdef inline void round_row(Grid grid, const float* x, float* y, RowScratch* s, size_t n, Kind kind, int rounding) noexcept nogil:
    """Quantize n elements, whole blocks, from x to y, which may be the same."""
    cdef int32_t* fields = row_fields(grid, x, s, n, kind)
    cdef size_t i, groups = n // grid.group_size, eights = grid.group_size // 8
    for i in range(groups):
        s.c[i] = <int32_t>bits_of(scale_up(fields[i]))
        fields[i] = <int32_t>bits_of(scale_down(fields[i], kind == PRIME))
    if eights:
        for i in range(groups):
            round_run(grid, x, y, 8 * eights, float_of(<uint32_t>fields[i]), float_of(<uint32_t>s.c[i]), kind, rounding)
            x += 8 * eights
            y += 8 * eights
        return
    cdef const int32_t* down = spread(fields, s.b if fields == s.a else s.a, groups, n)
    cdef const int32_t* up = spread(s.c, s.d, groups, n)
    for i in range(n):
        y[i] = round_element(x[i], float_of(<uint32_t>down[i]), float_of(<uint32_t>up[i]), grid, kind, rounding)


cdef inline void round_run(Grid grid, const float* x, float* y, size_t n, float down, float up, Kind kind, int rounding) noexcept nogil:
    cdef size_t i
    for i in range(n):
        y[i] = round_element(x[i], down, up, grid, kind, rounding)


cdef inline void row_unit(const BlockTask* task, size_t unit, Kind kind, int rounding) noexcept nogil:
    """Quantize one tile of a fibre; a short last block is a full one with zeros."""
    cdef RowScratch s
    cdef size_t i, first = (unit % task.tiles) * task.tile
    cdef size_t n = min(task.tile, task.length - first)
    cdef size_t start = (unit // task.tiles) * task.length + first
    cdef size_t full = (n + task.grid.block_size - 1) // task.grid.block_size * task.grid.block_size
    cdef const float* x = s.x
    if task.streams:  # fetch the next tile while this one is worked on
        for i in range(n // 16):
            prefetch(<const float*>task.source + start + task.tile + 16 * i)
    if task.element_type == FLOAT32 and n == full and not task.grid.bfloat16_first:
        x = <const float*>task.source + start  # saves a copy
    else:
        load_run(task, start, s.x, n)
    for i in range(n, full):
        s.x[i] = 0
    round_row(task.grid, x, s.x, &s, full, kind, rounding)
    store_run(task, start, s.x, n)


# Columns: neighbours belong to neighbouring blocks -----------------------------------------------------------------

cdef inline void column_maxima(const float* x, int32_t* maxima, size_t n, size_t lanes, bint poisoned) noexcept nogil:
    """The largest magnitude of each lane over n lines."""
    cdef size_t i, j
    for j in range(lanes):
        maxima[j] = 0
    for i in range(n):
        for j in range(lanes):
            maxima[j] = larger(maxima[j], counted_magnitude(x[i * lanes + j], poisoned))


cdef inline void column_group(Grid grid, ColumnScratch* s, float* x, size_t n, size_t lanes, Kind kind,
                              int rounding) noexcept nogil:
    """Quantize n lines that make up one group of each lane."""
    cdef size_t i, j
    if kind == PRIME:
        column_maxima(x, s.group, n, lanes, kind == PRIME)
        for j in range(lanes):
            s.group[j] = group_field(exponent_field(s.group[j], grid.carry), s.block[j], grid.span)
    else:
        for j in range(lanes):
            s.group[j] = s.block[j]
    for j in range(lanes):
        s.down[j] = scale_down(s.group[j], kind == PRIME)
        s.up[j] = scale_up(s.group[j])
    for i in range(n):
        for j in range(lanes):
            x[i * lanes + j] = round_element(x[i * lanes + j], s.down[j], s.up[j], grid, kind, rounding)


cdef inline void column_unit(const BlockTask* task, size_t unit, Kind kind, int rounding) noexcept nogil:
    """Quantize one block of each of some neighbouring fibres."""
    cdef ColumnScratch s
    cdef Grid grid = task.grid
    cdef size_t blocks = (task.length + grid.block_size - 1) // grid.block_size
    cdef size_t first = (unit // task.tiles) % blocks * grid.block_size
    cdef size_t column = (unit % task.tiles) * task.tile
    cdef size_t start = (unit // task.tiles // blocks * task.length + first) * task.inner + column
    cdef size_t n = min(grid.block_size, task.length - first)
    cdef size_t used = min(task.tile, task.inner - column)
    cdef size_t lanes = (used + 15) & ~<size_t>15
    cdef size_t i, j
    for i in range(n):
        load_run(task, start + i * task.inner, s.x + i * lanes, used)
        for j in range(used, lanes):
            s.x[i * lanes + j] = 0
    column_maxima(s.x, s.block, n, lanes, kind == PRIME)
    for j in range(lanes):
        s.block[j] = exponent_field(s.block[j], grid.carry)
    for i in range((n - 1) // grid.group_size + 1):
        j = i * grid.group_size
        column_group(grid, &s, s.x + j * lanes, min(grid.group_size, n - j), lanes, kind, rounding)
    for i in range(n):
        store_run(task, start + i * task.inner, s.x + i * lanes, used)


# One block at a time: any size -------------------------------------------------------------------------------------

cdef inline float load_one(const BlockTask* task, size_t at) noexcept nogil:
    cdef float x
    load_run(task, at, &x, 1)
    return x


cdef inline int32_t strided_maximum(const BlockTask* task, size_t start, size_t n, bint positive, bint poisoned) noexcept nogil:
    """The largest magnitude of n elements of a fibre, or of the positive ones among them."""
    cdef int32_t result = 0
    cdef float x
    cdef size_t i
    for i in range(n):
        x = load_one(task, start + i * task.inner)
        if not positive or x > 0:
            result = larger(result, counted_magnitude(x, poisoned))
    return result


cdef inline void single_unit(const BlockTask* task, size_t unit, Kind kind, int rounding) noexcept nogil:
    cdef Grid grid = task.grid
    cdef size_t blocks = task.tiles
    cdef size_t first = (unit // task.inner) % blocks * grid.block_size
    cdef size_t start = (unit // task.inner // blocks * task.length + first) * task.inner + unit % task.inner
    cdef size_t n = min(grid.block_size, task.length - first)
    cdef int32_t block = exponent_field(strided_maximum(task, start, n, False, kind == PRIME), grid.carry)
    cdef int32_t field
    cdef size_t i, group, stop
    cdef float x
    if grid.grow:  # rounding up the bits below the significand carries into the exponent
        block = larger(block, exponent_field(strided_maximum(task, start, n, True, False), 1 << (23 - grid.bits)))
    for group in range((n - 1) // grid.group_size + 1):
        field = block
        stop = min((group + 1) * grid.group_size, n)
        i = start + group * grid.group_size * task.inner
        if kind == PRIME:
            field = exponent_field(strided_maximum(task, i, stop - group * grid.group_size, False, True), grid.carry)
            field = group_field(field, block, grid.span)
        while i < start + stop * task.inner:
            x = round_element(load_one(task, i), scale_down(field, kind == PRIME), scale_up(field), grid, kind, rounding)
            store_run(task, i, &x, 1)
            i += task.inner


# A tensor ----------------------------------------------------------------------------------------------------------

cdef inline void unit_range(const BlockTask* task, size_t first, size_t last, Kind kind, int rounding) noexcept nogil:
    cdef size_t unit
    if task.layout == ROWS:
        for unit in range(first, last):
            row_unit(task, unit, kind, rounding)
    elif task.layout == COLUMNS:
        for unit in range(first, last):
            column_unit(task, unit, kind, rounding)
    else:
        for unit in range(first, last):
            single_unit(task, unit, kind, rounding)


cdef CLONED_VOID block_range(const BlockTask* task, size_t first, size_t last) noexcept nogil:
    """Quantize the units from first up to last, with constants where they make a loop fast."""
    if task.grid.kind == FLOATING:
        unit_range(task, first, last, FLOATING, HALF_EVEN)
    elif task.grid.kind == PRIME and task.grid.rounding == HALF_EVEN:
        unit_range(task, first, last, PRIME, HALF_EVEN)
    elif task.grid.kind == PRIME:
        unit_range(task, first, last, PRIME, HALF_AWAY)
    elif task.grid.rounding == HALF_EVEN:
        unit_range(task, first, last, PLAIN, HALF_EVEN)
    elif task.grid.rounding == HALF_AWAY:
        unit_range(task, first, last, PLAIN, HALF_AWAY)
    else:
        unit_range(task, first, last, PLAIN, HALF_UP)
    if task.streams:
        stream_fence()


cdef bint is_power_of_two(size_t n) noexcept nogil:
    return n & (n - 1) == 0


cdef void choose_layout(BlockTask* task) noexcept nogil:
    """Choose how to go through a tensor that is not empty, and how many units that makes."""
    task.streams = task.element_type == FLOAT32 and task.outer * task.length * task.inner >= STREAM_FROM
    cdef size_t block = task.grid.block_size
    cdef size_t lines = min(block, task.length)
    cdef size_t blocks = (task.length - 1) // block + 1
    if task.inner == 1 and block <= ROW_TILE and is_power_of_two(block) and not task.grid.grow \
            and is_power_of_two(task.grid.group_size):
        if task.length % block == 0:  # the end of a fibre is the end of a block, too
            task.length *= task.outer
            task.outer = 1
        task.layout = ROWS
        task.tile = ROW_TILE
        task.tiles = (task.length - 1) // ROW_TILE + 1
        task.units = task.outer * task.tiles
    elif task.inner > 1 and lines * 16 <= COLUMN_TILE and not task.grid.grow:
        task.layout = COLUMNS
        task.tile = min(COLUMN_TILE // lines & ~<size_t>15, <size_t>MOST_LANES)
        task.tiles = (task.inner - 1) // task.tile + 1
        task.units = task.outer * blocks * task.tiles
    else:
        task.layout = SINGLE
        task.tiles = blocks
        task.units = task.outer * blocks * task.inner
