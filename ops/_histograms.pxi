# Numbers counted in equal bins around zero, for ops/histograms.py.
#
# IN: numbers x, no NaN, and the scale, a power of two that brings the width of a bin to 1. INOUT: counts [bins], an even
# number. Numbers beyond the bins are counted in the outermost.
#
#   bin = floor(x scale) + bins / 2, exactly: the product is exact, or so small that its sign alone matters
#
# The bins of a tile are found side by side and then counted, in tables [BIN_TABLES, bins] that take turns: of equal
# numbers in a row, as zeros after a Relu are, each count would else wait for the one before.

cdef enum:
    BIN_TILE = 1024
    BIN_TABLES = 4


cdef inline int32_t floor_scaled(float number, float scale, float ends) noexcept nogil:
    cdef float product = number * scale
    cdef int32_t whole
    product = product if product > -ends else -ends
    product = product if product < ends else ends - 1
    whole = <int32_t>product
    return whole - ((product < <float>whole) | ((product == 0) & (number < 0)))


cdef CLONED_VOID find_bins(const float* x, float scale, int32_t half, int32_t* bins, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        bins[i] = half + floor_scaled(x[i], scale, <float>half)


cdef void count_bins(const int32_t* bins, uint32_t* tables, size_t stride, size_t n) noexcept nogil:
    cdef size_t i = 0, t
    while i + BIN_TABLES <= n:
        for t in range(BIN_TABLES):
            tables[t * stride + bins[i + t]] += 1
        i += BIN_TABLES
    for t in range(n - i):
        tables[t * stride + bins[i + t]] += 1


def count_in_bins(source, float scale, counts, tables):
    """Add to counts those of numbers, fewer than 2^32, in bins that are 1 / scale wide; tables are scratch memory."""
    cdef int32_t bins[BIN_TILE]
    cdef Array numbers = floats(source), totals = Array(counts, "i", 8, 1, True), work = Array(tables, "u", 4, 2, True)
    cdef const float* x = <const float*>numbers.data
    cdef int64_t* sums = <int64_t*>totals.data
    cdef uint32_t* parts = <uint32_t*>work.data
    cdef size_t first = 0, i, t, n, size = numbers.d0, stride = totals.d0
    with nogil:
        memset(parts, 0, BIN_TABLES * stride * sizeof(uint32_t))
        while first < size:
            n = min(<size_t>BIN_TILE, size - first)
            find_bins(x + first, scale, <int32_t>(stride // 2), bins, n)
            count_bins(bins, parts, stride, n)
            first += n
        for t in range(BIN_TABLES):
            for i in range(stride):
                sums[i] += parts[t * work.d1 + i]
