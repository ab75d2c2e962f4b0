# The operator that shows: hands its input, where it is, to a function of Python while the model runs. Its output is empty.
# Nothing of the tensor is copied, and it lives no longer than without the operator.

cdef bint python_is_ready  # not if ONNX Runtime loaded this library by its path, and nobody imported it
watchers = {}  # by the number that the node has as its attribute
python_is_ready = True


def look(int64_t number, watcher):
    """Let a function be called by the nodes of a number with a tensor: its bytes, element type and shape.

    The bytes are there during the call alone. An exception ends the run of the model. None: nobody looks any more.
    """
    if watcher is None:
        watchers.pop(number, None)
    else:
        watchers[number] = watcher


cdef Status read_show(Kernel* kernel, const Node* node) noexcept nogil:
    cdef IntAttribute number = [b"number", 0, 0, INT64_MAX]
    return read_int(node, &number, &kernel.axis) if python_is_ready else refuse(node, "nobody can look")


cdef Status compute_show(const Kernel* kernel, OrtKernelContext* context) noexcept nogil:
    cdef const OrtApi* api = kernel.api
    cdef Tensor tensor, nothing
    cdef void* target = NULL
    cdef int element_type = UNDEFINED
    cdef bint seen
    cdef Status status = read_tensor(api, context, 0, &tensor)
    if status == NULL:
        status = read_element_type(api, context, &element_type)
    if status != NULL:
        return status
    with gil:
        seen = hand_over(kernel.axis, &tensor, element_type)
    if not seen:
        return refuse_at_run(kernel, "who looks at the tensor refuses it")
    nothing.rank, nothing.dims[0] = 1, 0
    return create_output(api, context, &nothing, &target)


cdef Status read_element_type(const OrtApi* api, OrtKernelContext* context, int* element_type) noexcept nogil:
    cdef const OrtValue* value = NULL
    cdef TensorInfo* info = NULL
    cdef Status status = api.KernelContext_GetInput(context, 0, &value)
    if status == NULL:
        status = api.GetTensorTypeAndShape(value, &info)
    if status == NULL:
        status = api.GetTensorElementType(info, element_type)
        api.ReleaseTensorTypeAndShapeInfo(info)
    return status


cdef bint hand_over(int64_t number, const Tensor* tensor, int element_type) noexcept:
    """Whether somebody looked at the tensor and was content. Of other types than float32 there are no bytes to see."""
    cdef size_t size = tensor.size * sizeof(float) if element_type == FLOAT32 else 0
    cdef char none = 0
    cdef char* data = <char*>tensor.data if size else &none
    try:
        view = PyMemoryView_FromMemory(data, <Py_ssize_t>size, PyBUF_READ)
        watchers[number](view, element_type, tuple([tensor.dims[i] for i in range(tensor.rank)]))
        return True
    except BaseException:  # whoever looks keeps what was wrong
        return False
