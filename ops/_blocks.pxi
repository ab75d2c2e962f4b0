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

cdef enum:
    STREAM_FROM = 1 << 22  # elements: 16 MB

cdef enum Layout:
    ROWS
    COLUMNS
    SINGLE

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
        ALIGNED float y[ROW_TILE];
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
    enum:
        ROW_TILE
        COLUMN_TILE
        MOST_LANES
    ctypedef struct RowScratch:
        float* x
        float* y
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

cdef CLONED_VOID load_converted(const BlockTask* task, size_t start, float* target, size_t n) noexcept nogil:
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


cdef CLONED_VOID store_converted(const BlockTask* task, size_t start, const float* source, size_t n) noexcept nogil:
    cdef size_t i
    if task.element_type == FLOAT16:
        for i in range(n):
            (<uint16_t*>task.target)[start + i] = <uint16_t>float16_bits(source[i])
    else:
        for i in range(n):
            (<uint16_t*>task.target)[start + i] = <uint16_t>bfloat16_bits(source[i])


cdef inline void load_run(const BlockTask* task, size_t start, float* target, size_t n) noexcept nogil:
    if task.element_type == FLOAT32 and not task.grid.bfloat16_first:
        memcpy(target, <const float*>task.source + start, n * sizeof(float))
    else:  # functions of their own: one copy for all kinds and ways of rounding
        load_converted(task, start, target, n)


cdef inline void store_run(const BlockTask* task, size_t start, const float* source, size_t n) noexcept nogil:
    if task.streams:
        stream_floats(<float*>task.target + start, source, n)
    elif task.element_type == FLOAT32:
        memcpy(<float*>task.target + start, source, n * sizeof(float))
    else:
        store_converted(task, start, source, n)


cdef inline float load_one(const BlockTask* task, size_t at) noexcept nogil:
    cdef float x
    if task.element_type == FLOAT32:
        x = (<const float*>task.source)[at]
    elif task.element_type == FLOAT16:
        x = widen((<const float16_t*>task.source)[at])
    else:
        x = widen((<const bfloat16_t*>task.source)[at])
    return float_of_bfloat16(bfloat16_bits(x)) if task.grid.bfloat16_first else x


cdef inline void store_one(const BlockTask* task, size_t at, float x) noexcept nogil:
    if task.element_type == FLOAT32:
        (<float*>task.target)[at] = x
    elif task.element_type == FLOAT16:
        (<uint16_t*>task.target)[at] = <uint16_t>float16_bits(x)
    else:
        (<uint16_t*>task.target)[at] = <uint16_t>bfloat16_bits(x)
