# BFPQuantizeDequantize and MXQuantizeDequantize as operators: their attributes, the axis, the work on threads.

cdef struct BlockPieces:
    const BlockTask* task
    size_t size  # units in a piece


cdef Status read_blocks(Kernel* kernel, const Node* node) noexcept nogil:
    cdef IntAttribute axis = [b"axis", 1, -MAX_RANK, MAX_RANK - 1]
    cdef Tensor x
    cdef Status status = read_int(node, &axis, &kernel.axis)
    if status == NULL:
        status = read_bfp(kernel, node) if kernel.op.kind == BFP else read_mx(kernel, node)
    if status == NULL:
        status = read_input_shape(node, 0, &x)
    if status == NULL and x.rank > 1:
        status = check_axis(node, kernel.axis, x.rank)
    return status


cdef Status read_bfp(Kernel* kernel, const Node* node) noexcept nogil:
    cdef IntAttribute[7] attributes = [
        [b"bit_width", 16, 10, 24],
        [b"block_size", 8, 1, LONGEST_BLOCK],
        [b"rounding_mode", 0, 0, 2],
        [b"sub_block_size", 2, 1, LONGEST_BLOCK],
        [b"sub_block_shift_bits", 1, 0, 8],
        [b"convert_to_bfloat_before_bfp", 0, 0, 1],
        [b"use_compiler_version_cpu_kernel", 0, 0, 1],
    ]
    cdef const char** methods = [b"to_bfp", b"to_bfp_prime", b"to_bfp_prime_shared"]
    cdef int64_t[7] values
    cdef int method = 0
    cdef int i
    cdef Status status = read_choice(node, "bfp_method", methods, METHODS, &method)
    for i in range(7):
        if status == NULL:
            status = read_int(node, &attributes[i], &values[i])
    if status == NULL:
        status = check_bfp(node, method > 0, values[0], values[1], values[3], values[6])
    if status != NULL:
        return status
    if method > 0:
        kernel.grid = prime_grid(<size_t>values[1], <int>values[0] - 9, <int>values[2], <size_t>values[3], <int>values[4])
    elif values[6]:
        kernel.grid = compiler_grid(<size_t>values[1], <int>values[0] - 9, <int>values[2])
    else:
        kernel.grid = plain_grid(<size_t>values[1], <int>values[0] - 9, <int>values[2])
    kernel.grid.bfloat16_first = values[5] != 0
    return NULL


cdef Status check_bfp(const Node* node, bint prime, int64_t bit_width, int64_t block_size, int64_t sub_block_size,
                      int64_t compiler) noexcept nogil:
    """Check what attributes ask of each other."""
    cdef char problem[MESSAGE]
    if prime and block_size % sub_block_size:
        snprintf(problem, sizeof(problem), "attribute 'sub_block_size' is %lld, legal are divisors of block_size %lld",
                 <long long>sub_block_size, <long long>block_size)
        return refuse(node, problem)
    if compiler and (prime or bit_width != 16):
        snprintf(problem, sizeof(problem), "attribute 'use_compiler_version_cpu_kernel' is 1, legal is 0 unless "
                 "bfp_method is to_bfp and bit_width is 16 (it is %lld)", <long long>bit_width)
        return refuse(node, problem)
    return NULL


cdef Status read_mx(Kernel* kernel, const Node* node) noexcept nogil:
    cdef IntAttribute block_size = [b"block_size", 32, 1, LONGEST_BLOCK]
    cdef IntAttribute rounding_mode = [b"rounding_mode", 0, 0, 2]
    cdef const char** rules = [b"floor", b"ceil", b"even", b"rceil"]
    cdef const char* names[ELEMENTS]
    cdef Element elements[ELEMENTS]
    cdef int64_t size = 0, rounding = 0
    cdef int i, element = 0, rule = 0
    fill_elements(elements)
    for i in range(ELEMENTS):
        names[i] = elements[i].name
    cdef Status status = read_choice(node, "element_dtype", names, ELEMENTS, &element)
    if status == NULL:
        status = read_choice(node, "scale_rule", rules, SCALE_RULES, &rule)
    if status == NULL:
        status = read_int(node, &block_size, &size)
    if status == NULL:
        status = read_mx_rounding(node, &rounding_mode, &rounding)
    if status == NULL:
        kernel.grid = element_grid(<size_t>size, &elements[element], rule, <int>rounding)
    return status


cdef Status read_mx_rounding(const Node* node, const IntAttribute* attribute, int64_t* value) noexcept nogil:
    """Read rounding_mode; 7 is another name for 0, which models in circulation have."""
    cdef Status status = node.api.KernelInfoGetAttribute_int64(node.info, attribute.name, value)
    if succeeds(node.api, status) and value[0] == 7:
        value[0] = 0
        return NULL
    return read_int(node, attribute, value)


cdef Status compute_blocks(const Kernel* kernel, OrtKernelContext* context) noexcept nogil:
    cdef const OrtApi* api = kernel.api
    cdef Tensor x
    cdef BlockTask task
    cdef Status status = read_tensor(api, context, 0, &x)
    if status == NULL:
        status = plan_blocks(kernel, &x, &task)
    if status == NULL:
        status = create_output(api, context, &x, &task.target)
    if status != NULL or x.size == 0:
        return status
    if x.size <= PIECE:
        run_blocks(&task)
        return NULL
    return run_on_threads(api, context, &task, x.size)


cdef Status plan_blocks(const Kernel* kernel, const Tensor* x, BlockTask* task) noexcept nogil:
    cdef char problem[MESSAGE]
    cdef int64_t rank = <int64_t>x.rank
    cdef int64_t axis = kernel.axis + (rank if kernel.axis < 0 else 0)
    if rank < 2:
        axis = 0
    elif axis < 0 or axis >= rank:
        snprintf(problem, sizeof(problem), "attribute 'axis' is %lld, legal are %lld to %lld for an input of rank %zu",
                 <long long>kernel.axis, <long long>-rank, <long long>rank - 1, x.rank)
        return refuse_at_run(kernel, problem)
    task.grid = kernel.grid
    task.element_type = kernel.op.element_type
    task.source = x.data
    task.outer = product(x, 0, <size_t>axis)
    task.length = <size_t>x.dims[axis] if rank > 0 else 1
    task.inner = product(x, <size_t>axis + 1, x.rank)
    return NULL


cdef Status run_on_threads(const OrtApi* api, OrtKernelContext* context, BlockTask* task, size_t size) noexcept nogil:
    cdef BlockPieces pieces
    choose_layout(task)
    pieces.task = task
    pieces.size = max(task.units * PIECE // size, <size_t>1)
    return api.KernelContext_ParallelFor(context, run_block_piece, (task.units - 1) // pieces.size + 1, 0, &pieces)


cdef void run_block_piece(void* data, size_t i) noexcept nogil:
    cdef const BlockPieces* pieces = <const BlockPieces*>data
    cdef uint64_t flushes = stop_flushing()
    block_range(pieces.task, i * pieces.size, min((i + 1) * pieces.size, pieces.task.units))
    resume_flushing(flushes)


cdef void run_blocks(BlockTask* task) noexcept nogil:
    """Quantize a tensor that is not empty, in this thread. A single number is its own best approximation."""
    if task.outer * task.length * task.inner == 1:
        store_one(task, 0, load_one(task, 0))
    else:
        choose_layout(task)
        block_range(task, 0, task.units)
