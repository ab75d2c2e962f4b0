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


cdef inline void round_columns(Grid grid, ColumnScratch* s, size_t n, size_t lanes, Kind kind, int rounding) noexcept nogil:
    """Quantize n lines that make up one block of each lane."""
    cdef size_t i, j
    if kind != PRIME:
        column_maxima(s.x, s.block, n, lanes, False)
    for j in range(lanes):
        s.block[j] = exponent_field(s.block[j], grid.carry)
    for i in range((n - 1) // grid.group_size + 1):
        j = i * grid.group_size
        column_group(grid, s, s.x + j * lanes, min(grid.group_size, n - j), lanes, kind, rounding)


cdef inline void round_ordinary_columns(const Ordinary* grid, ColumnScratch* s, size_t n, size_t lanes, Kind kind,
                                        int rounding) noexcept nogil:
    """The same for ordinary blocks."""
    cdef size_t i
    for i in range(n):
        if kind == PRIME and i % grid.group_size == 0:
            column_maxima(s.x + i * lanes, s.group, min(grid.group_size, n - i), lanes, True)
        round_ordinary_line(grid, s.x + i * lanes, s.block, s.group, lanes, kind, rounding)


cdef inline void column_unit(const BlockTask* task, const Ordinary* ordinary, size_t unit, Kind kind,
                             int rounding) noexcept nogil:
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
    column_maxima(s.x, s.block, n, lanes, True)
    if all_ordinary(ordinary, s.block, lanes):
        round_ordinary_columns(ordinary, &s, n, lanes, kind, rounding)
    else:
        round_columns(grid, &s, n, lanes, kind, rounding)
    for i in range(n):
        store_run(task, start + i * task.inner, s.x + i * lanes, used)
