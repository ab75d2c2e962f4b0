# The operators as ONNX Runtime sees them: types, attributes, shape inference, and the table that registers them all.
# One OrtCustomOp per element type, so that a wrong input type is refused when the model is loaded.

cdef enum OperatorKind:
    QUANTIZE
    DEQUANTIZE
    BFP
    MX
    SHOW

cdef enum:
    OPERATORS = 22
    MAX_RANK = 64
    MESSAGE = 512
    PIECE = 65536  # elements of one task on the thread pool; smaller tensors do not go there at all
    SPIN = 100000  # calls of GetName without any other: see operator_name

cdef struct Operator:
    OrtCustomOp abi  # first, because ORT hands back a pointer to it
    OperatorKind kind
    int element_type  # of the quantized tensor, or of the only input
    bint shares_domain  # with the operators that Python code may define
    bint hidden
    long name_calls

cdef struct Kernel:  # what a node keeps; never written after its creation, so that threads may share it
    const OrtApi* api
    const Operator* op
    int64_t axis  # or, of a node that shows, who looks
    Grid grid  # of the block formats

cdef struct Tensor:
    const void* data
    int64_t dims[MAX_RANK]
    size_t rank
    size_t size


cdef const char* kind_name(OperatorKind kind) noexcept nogil:
    if kind == QUANTIZE:
        return "ExtendedQuantizeLinear"
    if kind == DEQUANTIZE:
        return "ExtendedDequantizeLinear"
    if kind == SHOW:
        return "Size"  # ONNX Runtime takes nodes of this name first, as soon as they can run
    return "BFPQuantizeDequantize" if kind == BFP else "MXQuantizeDequantize"


cdef bint is_block_kind(OperatorKind kind) noexcept nogil:
    return kind == BFP or kind == MX


cdef const char* operator_name(const OrtCustomOp* abi) noexcept nogil:
    """The operator's name, or a name that nobody uses when a Python operator of the same name exists.

    onnxruntime-extensions never ends its registration when a Python operator (onnx_op) has the name of a native one:
    it asks for this name again and again. So a name that is asked for very often, with no other question in
    between, gives way for good, and the Python operator is the one that models get.
    """
    cdef Operator* op = <Operator*>abi
    if op.shares_domain and not op.hidden:
        op.hidden = atomic_increment(&op.name_calls) > SPIN
    if op.hidden:
        return "HiddenByPythonOperator"
    return kind_name(op.kind)


cdef const char* execution_provider(const OrtCustomOp* abi) noexcept nogil:
    atomic_clear(&(<Operator*>abi).name_calls)
    return NULL  # CPU


cdef int input_type(const OrtCustomOp* abi, size_t i) noexcept nogil:
    cdef const Operator* op = <const Operator*>abi
    return FLOAT32 if i == 1 or (i == 0 and op.kind == QUANTIZE) else op.element_type


cdef size_t input_count(const OrtCustomOp* abi) noexcept nogil:
    cdef OperatorKind kind = (<const Operator*>abi).kind
    return 1 if is_block_kind(kind) or kind == SHOW else 3


cdef int output_type(const OrtCustomOp* abi, size_t i) noexcept nogil:
    cdef const Operator* op = <const Operator*>abi
    return FLOAT32 if op.kind == DEQUANTIZE or op.kind == SHOW else op.element_type


cdef size_t output_count(const OrtCustomOp* abi) noexcept nogil:
    return 1


cdef int required(const OrtCustomOp* abi, size_t i) noexcept nogil:
    return 0


cdef int default_memory(const OrtCustomOp* abi, size_t i) noexcept nogil:
    return 0


cdef int not_variadic(const OrtCustomOp* abi) noexcept nogil:
    return 0


cdef int first_version(const OrtCustomOp* abi) noexcept nogil:
    return 1


cdef int last_version(const OrtCustomOp* abi) noexcept nogil:
    return INT_MAX


cdef Status infer_shape(const OrtCustomOp* abi, OrtShapeInferContext* context) noexcept nogil:
    """Give the output the shape of the first input. ORT ignores a status that is returned here, hence none is.

    ORT asks the first of the operators that share a name, whatever the types, and newer versions take the type
    from here too: it must come from the inputs.
    """
    cdef const OrtApi* api = shape_api
    cdef TensorInfo* info = NULL
    cdef size_t rank = 0
    cdef int element_type = FLOAT32
    if api == NULL or not succeeds(api, api.ShapeInferContext_GetInputTypeShape(context, 0, &info)):
        return NULL
    if (<const Operator*>abi).kind != DEQUANTIZE and not read_typing_input(api, abi, context, &element_type):
        return NULL
    if not succeeds(api, api.GetDimensionsCount(info, &rank)) or rank == 0 or rank > MAX_RANK:
        return NULL  # rank 0 may mean "unknown"
    if name_dynamic_dims(api, info, rank) and succeeds(api, api.SetTensorElementType(info, element_type)):
        succeeds(api, api.ShapeInferContext_SetOutputTypeShape(context, 0, info))
    return NULL


cdef bint read_typing_input(const OrtApi* api, const OrtCustomOp* abi, OrtShapeInferContext* context,
                            int* element_type) noexcept nogil:
    """Read the type of the input that gives the output its type: the zero point, or the only input."""
    cdef TensorInfo* info = NULL
    if not succeeds(api, api.ShapeInferContext_GetInputTypeShape(context, input_count(abi) - 1, &info)):
        return False
    return succeeds(api, api.GetTensorElementType(info, element_type))


cdef bint name_dynamic_dims(const OrtApi* api, TensorInfo* info, size_t rank) noexcept nogil:
    """Name the nameless dynamic dimensions, which ORT would otherwise hand on as the constant -1."""
    cdef int64_t dims[MAX_RANK]
    cdef const char* names[MAX_RANK]
    cdef char copies[MAX_RANK][64]
    cdef size_t i
    if not succeeds(api, api.GetDimensions(info, dims, rank)):
        return False
    if not succeeds(api, api.GetSymbolicDimensions(info, names, rank)):
        return False
    for i in range(rank):  # the names belong to `info`, which lets go of them when it gets new ones
        if (dims[i] < 0 and names[i][0] == 0) or strlen(names[i]) >= sizeof(copies[i]):
            snprintf(copies[i], sizeof(copies[i]), "narrow_dim_%ld", atomic_increment(&fresh_names))
        else:
            strcpy(copies[i], names[i])
        names[i] = copies[i]
    return succeeds(api, api.SetSymbolicDimensions(info, names, rank))


cdef bint succeeds(const OrtApi* api, Status status) noexcept nogil:
    """Whether a call succeeded; its status is released."""
    if status == NULL:
        return True
    api.ReleaseStatus(status)
    return False


cdef Status create_kernel(const OrtCustomOp* abi, const OrtApi* api, const OrtKernelInfo* info,
                          void** kernel) noexcept nogil:
    cdef Kernel checked
    cdef Status status
    cdef Node node
    checked.api = api
    checked.op = <const Operator*>abi
    node.api = api
    node.info = info
    node.operator_name = kind_name(checked.op.kind)
    if checked.op.kind == SHOW:
        status = read_show(&checked, &node)
    elif is_block_kind(checked.op.kind):
        status = read_blocks(&checked, &node)
    else:
        status = read_linear(&checked, &node)
    if status != NULL:
        return status
    kernel[0] = malloc(sizeof(Kernel))
    if kernel[0] == NULL:
        return api.CreateStatus(INVALID_ARGUMENT, "out of memory")
    (<Kernel*>kernel[0])[0] = checked
    return NULL


cdef void destroy_kernel(void* kernel) noexcept nogil:
    free(kernel)


cdef Status compute(void* kernel, OrtKernelContext* context) noexcept nogil:
    cdef uint64_t flushes = stop_flushing()
    cdef Status status
    if (<const Kernel*>kernel).op.kind == SHOW:
        status = compute_show(<const Kernel*>kernel, context)
    elif is_block_kind((<const Kernel*>kernel).op.kind):
        status = compute_blocks(<const Kernel*>kernel, context)
    else:
        status = compute_linear(<const Kernel*>kernel, context)
    resume_flushing(flushes)
    return status


cdef Status read_tensor(const OrtApi* api, OrtKernelContext* context, size_t i, Tensor* tensor) noexcept nogil:
    cdef const OrtValue* value = NULL
    cdef TensorInfo* info = NULL
    cdef Status status = api.KernelContext_GetInput(context, i, &value)
    if status == NULL:
        status = api.GetTensorMutableData(<OrtValue*>value, <void**>&tensor.data)
    if status == NULL:
        status = api.GetTensorTypeAndShape(value, &info)
    if status != NULL:
        return status
    status = read_shape(api, info, tensor)
    api.ReleaseTensorTypeAndShapeInfo(info)
    return status


cdef Status read_shape(const OrtApi* api, const TensorInfo* info, Tensor* tensor) noexcept nogil:
    cdef Status status = api.GetDimensionsCount(info, &tensor.rank)
    if status == NULL and tensor.rank > MAX_RANK:
        status = api.CreateStatus(INVALID_ARGUMENT, "tensors of more than 64 dimensions are not supported")
    if status == NULL:
        status = api.GetDimensions(info, tensor.dims, tensor.rank)
    tensor.size = 1
    if status == NULL:
        for i in range(tensor.rank):
            tensor.size *= <size_t>tensor.dims[i]
    return status


cdef size_t product(const Tensor* tensor, size_t first, size_t last) noexcept nogil:
    """The product of some dimensions."""
    cdef size_t result = 1
    for i in range(first, last):
        result *= <size_t>tensor.dims[i]
    return result


cdef Status refuse_at_run(const Kernel* kernel, const char* problem) noexcept nogil:
    """Return an error status; ORT puts the name of the node in front."""
    cdef char message[2 * MESSAGE]
    snprintf(message, sizeof(message), "%s: %s", kind_name(kernel.op.kind), problem)
    return kernel.api.CreateStatus(INVALID_ARGUMENT, message)


cdef Status create_output(const OrtApi* api, OrtKernelContext* context, const Tensor* like, void** data) noexcept nogil:
    cdef OrtValue* value = NULL
    cdef Status status = api.KernelContext_GetOutput(context, 0, like.dims, like.rank, &value)
    return api.GetTensorMutableData(value, data) if status == NULL else status


cdef void fill_operator(Operator* op, OperatorKind kind, int element_type, bint shares_domain) noexcept nogil:
    op.kind = kind
    op.element_type = element_type
    op.shares_domain = shares_domain
    op.abi.version = API_VERSION
    op.abi.GetName = operator_name
    op.abi.GetExecutionProviderType = execution_provider
    op.abi.GetInputType = input_type
    op.abi.GetInputTypeCount = input_count
    op.abi.GetOutputType = output_type
    op.abi.GetOutputTypeCount = output_count
    op.abi.KernelDestroy = destroy_kernel
    op.abi.GetInputCharacteristic = required
    op.abi.GetOutputCharacteristic = required
    op.abi.GetInputMemoryType = default_memory
    op.abi.GetVariadicInputMinArity = not_variadic
    op.abi.GetVariadicInputHomogeneity = not_variadic
    op.abi.GetVariadicOutputMinArity = not_variadic
    op.abi.GetVariadicOutputHomogeneity = not_variadic
    op.abi.CreateKernelV2 = create_kernel
    op.abi.KernelComputeV2 = compute
    op.abi.InferOutputShapeFn = infer_shape
    if kind == SHOW:
        op.abi.InferOutputShapeFn = NULL
    op.abi.GetStartVersion = first_version
    op.abi.GetEndVersion = last_version
