# ExtendedQuantizeLinear and ExtendedDequantizeLinear as operators: the axis, the shapes, the work on threads.

cdef struct LinearPieces:
    const LinearTask* task
    size_t size


cdef Status read_linear(Kernel* kernel, const Node* node) noexcept nogil:
    cdef IntAttribute axis = [b"axis", 0, -MAX_RANK, MAX_RANK - 1]
    cdef Tensor x, scale
    cdef Status status = read_int(node, &axis, &kernel.axis)
    if status == NULL:
        status = read_input_shape(node, 0, &x)
    if status == NULL:
        status = read_input_shape(node, 1, &scale)
    if status == NULL and x.rank > 0 and scale.rank == 1 and scale.dims[0] > 1:
        status = check_axis(node, kernel.axis, x.rank)
    return status


cdef Status compute_linear(const Kernel* kernel, OrtKernelContext* context) noexcept nogil:
    cdef const OrtApi* api = kernel.api
    cdef Tensor x, scale, zero_point
    cdef LinearTask task
    cdef Status status = read_tensor(api, context, 0, &x)
    if status == NULL:
        status = read_tensor(api, context, 1, &scale)
    if status == NULL:
        status = read_tensor(api, context, 2, &zero_point)
    if status == NULL:
        status = plan_linear(kernel, &x, &scale, &zero_point, &task)
    if status == NULL:
        status = create_output(api, context, &x, &task.target)
    return run_linear(api, context, &task, x.size) if status == NULL else status


cdef Status plan_linear(const Kernel* kernel, const Tensor* x, const Tensor* scale, const Tensor* zero_point,
                        LinearTask* task) noexcept nogil:
    """Check the shapes and say what the loops have to do."""
    cdef char problem[MESSAGE]
    cdef int64_t axis = kernel.axis + (<int64_t>x.rank if kernel.axis < 0 else 0)
    task.quantize = kernel.op.kind == QUANTIZE
    task.stored_type = kernel.op.element_type
    task.source = x.data
    task.scale = <const float*>scale.data
    task.zero_point = zero_point.data
    task.channels = scale.size
    task.inner = max(x.size, <size_t>1)
    task.one_zero_point = zero_point.size == 1
    if scale.size != 1 and (axis < 0 or axis >= <int64_t>x.rank):
        snprintf(problem, sizeof(problem), "axis %lld is out of range for an input of rank %zu", <long long>kernel.axis,
                 x.rank)
        return refuse_at_run(kernel, problem)
    if scale.size != 1 and (scale.rank != 1 or scale.dims[0] != x.dims[axis]):
        snprintf(problem, sizeof(problem), "scale has %zu elements, legal are 1 or the %lld of axis %lld", scale.size,
                 <long long>x.dims[axis], <long long>kernel.axis)
        return refuse_at_run(kernel, problem)
    if zero_point.size != 1 and zero_point.size != scale.size:
        snprintf(problem, sizeof(problem), "zero_point has %zu elements, legal are 1 or the %zu of scale",
                 zero_point.size, scale.size)
        return refuse_at_run(kernel, problem)
    if scale.size != 1:
        task.inner = product(x, <size_t>axis + 1, x.rank)
    return NULL


cdef Status run_linear(const OrtApi* api, OrtKernelContext* context, const LinearTask* task, size_t size) noexcept nogil:
    cdef LinearPieces pieces = [task, size]
    if size <= PIECE:
        linear_range(task, 0, size)
        return NULL
    return api.KernelContext_ParallelFor(context, run_linear_piece, (size + PIECE - 1) // PIECE, 0, &pieces)


cdef void run_linear_piece(void* data, size_t i) noexcept nogil:
    cdef const LinearPieces* pieces = <const LinearPieces*>data
    cdef uint64_t flushes = stop_flushing()
    linear_range(pieces.task, i * PIECE, min((i + 1) * PIECE, pieces.size))
    resume_flushing(flushes)
