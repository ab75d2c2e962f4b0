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


cdef CLONED_VOID round_rare_row(const Grid* grid, const float* x, float* y, RowScratch* s, size_t n) noexcept nogil:
    """The same, as a function of its own: one copy for all kinds and ways of rounding."""
    round_row(grid[0], x, y, s, n, grid.kind, grid.rounding)


cdef inline void row_unit(const BlockTask* task, const Ordinary* ordinary, size_t unit, Kind kind, int rounding) noexcept nogil:
    """Quantize one tile of a fibre; a short last block is a full one with zeros."""
    cdef RowScratch s
    cdef size_t i, first = (unit % task.tiles) * task.tile
    cdef size_t n = min(task.tile, task.length - first)
    cdef size_t start = (unit // task.tiles) * task.length + first
    cdef size_t whole = max(task.grid.block_size, <size_t>LANES)
    cdef size_t full = (n + whole - 1) // whole * whole
    cdef const float* x = s.x
    if task.element_type == FLOAT32 and n == full and not task.grid.bfloat16_first:
        x = <const float*>task.source + start  # saves a copy
    else:
        load_run(task, start, s.x, n)
    for i in range(n, full):
        s.x[i] = 0
    if not round_ordinary_row(ordinary, x, s.y, full, kind, rounding):
        round_rare_row(&task.grid, x, s.y, &s, full)
    store_run(task, start, s.y, n)
