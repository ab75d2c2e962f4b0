# Columns: neighbours belong to neighbouring blocks -----------------------------------------------------------------

cdef inline void column_maxima(const float* x, int32_t* maxima, size_t n, size_t lanes, bint poisoned) noexcept nogil:
    """The largest magnitude of each lane over n lines."""
    cdef size_t i, j
    for j in range(lanes):
        maxima[j] = 0
    for i in range(n):
        for j in range(lanes):
            maxima[j] = larger(maxima[j], counted_magnitude(x[i * lanes + j], poisoned))


cdef inline void load_line(const BlockTask* task, size_t start, float* x, int32_t* maxima, size_t n, size_t lanes) noexcept nogil:
    """Load n elements, with zeros up to lanes, and raise the largest magnitude of each lane."""
    cdef const float* source = <const float*>task.source + start
    cdef size_t j
    if task.element_type == FLOAT32 and n == lanes and not task.grid.bfloat16_first:
        for j in range(lanes):
            x[j] = source[j]
            maxima[j] = larger(maxima[j], <int32_t>(bits_of(source[j]) & MAGNITUDE))
        return
    load_run(task, start, x, n)
    for j in range(n, lanes):
        x[j] = 0
    for j in range(lanes):
        maxima[j] = larger(maxima[j], <int32_t>(bits_of(x[j]) & MAGNITUDE))


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


cdef CLONED_VOID round_rare_columns(const Grid* constants, ColumnScratch* s, size_t n, size_t lanes) noexcept nogil:
    """Quantize n lines that make up one block of each lane."""
    cdef Grid grid = constants[0]
    cdef Kind kind = grid.kind
    cdef size_t i, j
    if kind != PRIME:
        column_maxima(s.x, s.block, n, lanes, False)
    for j in range(lanes):
        s.block[j] = exponent_field(s.block[j], grid.carry)
    for i in range((n - 1) // grid.group_size + 1):
        j = i * grid.group_size
        column_group(grid, s, s.x + j * lanes, min(grid.group_size, n - j), lanes, kind, grid.rounding)


cdef inline void round_ordinary_columns(const Ordinary* grid, ColumnScratch* s, const float* next, size_t step, size_t n,
                                        size_t lanes, Kind kind, int rounding) noexcept nogil:
    """The same for ordinary blocks, while n lines of lanes elements, step apart, are fetched for what follows."""
    cdef size_t i
    for i in range(n):
        if kind == PRIME and i % grid.group_size == 0:
            column_maxima(s.x + i * lanes, s.group, min(grid.group_size, n - i), lanes, True)
        round_ordinary_line(grid, s.x + i * lanes, next + i * step, s.block, s.group, lanes, kind, rounding)


cdef inline size_t column_start(const BlockTask* task, size_t unit) noexcept nogil:
    """The first element of a unit."""
    cdef size_t blocks = (task.length - 1) // task.grid.block_size + 1
    cdef size_t line = unit // task.tiles // blocks * task.length + unit // task.tiles % blocks * task.grid.block_size
    return line * task.inner + unit % task.tiles * task.tile


cdef inline void column_unit(const BlockTask* task, const Ordinary* ordinary, size_t unit, Kind kind,
                             int rounding) noexcept nogil:
    """Quantize one block of each of some neighbouring fibres."""
    cdef ColumnScratch s
    cdef Grid grid = task.grid
    cdef size_t blocks = (task.length + grid.block_size - 1) // grid.block_size
    cdef size_t first = (unit // task.tiles) % blocks * grid.block_size
    cdef size_t column = (unit % task.tiles) * task.tile
    cdef size_t start = column_start(task, unit)
    cdef size_t n = min(grid.block_size, task.length - first)
    cdef size_t used = min(task.tile, task.inner - column)
    cdef size_t lanes = (used + 15) & ~<size_t>15
    cdef const float* next = <const float*>task.source + column_start(task, unit + 1)
    cdef size_t i, j
    for j in range(lanes):
        s.block[j] = 0
    for i in range(n):
        load_line(task, start + i * task.inner, s.x + i * lanes, s.block, used, lanes)
    if all_ordinary(ordinary, s.block, lanes):
        round_ordinary_columns(ordinary, &s, next, task.inner, n, lanes, kind, rounding)
    else:
        round_rare_columns(&task.grid, &s, n, lanes)
    for i in range(n):
        store_run(task, start + i * task.inner, s.x + i * lanes, used)
