# Reading and checking a node's attributes. Every refusal names node, attribute, value and what is legal.

cdef struct Node:
    const OrtApi* api
    const OrtKernelInfo* info
    const char* operator_name


cdef struct IntAttribute:
    const char* name
    int64_t default
    int64_t lowest
    int64_t highest


cdef Status refuse(const Node* node, const char* problem) noexcept nogil:
    """Return an error status: operator, node, problem."""
    cdef char name[MESSAGE]
    cdef char message[3 * MESSAGE]
    cdef size_t size = sizeof(name)
    if not succeeds(node.api, node.api.KernelInfo_GetNodeName(node.info, name, &size)):
        snprintf(name, sizeof(name), "(long name)")
    snprintf(message, sizeof(message), "%s node '%s': %s", node.operator_name, name, problem)
    return node.api.CreateStatus(INVALID_ARGUMENT, message)


cdef bint is_missing(const Node* node, Status status) noexcept nogil:
    """Whether a status says that there is no such attribute. ORT tells that from a wrong type in the text only."""
    return strstr(node.api.GetErrorMessage(status), "No attribute with") != NULL


cdef Status refuse_type(const Node* node, Status status, const char* name, const char* legal) noexcept nogil:
    cdef char problem[MESSAGE]
    node.api.ReleaseStatus(status)
    snprintf(problem, sizeof(problem), "attribute '%s' has a wrong type, it must be %s", name, legal)
    return refuse(node, problem)


cdef Status read_int(const Node* node, const IntAttribute* attribute, int64_t* value) noexcept nogil:
    cdef char problem[MESSAGE]
    cdef Status status = node.api.KernelInfoGetAttribute_int64(node.info, attribute.name, value)
    if status != NULL and is_missing(node, status):
        node.api.ReleaseStatus(status)
        value[0] = attribute.default
        return NULL
    if status != NULL:
        return refuse_type(node, status, attribute.name, "an integer")
    if attribute.lowest <= value[0] <= attribute.highest:
        return NULL
    snprintf(problem, sizeof(problem), "attribute '%s' is %lld, legal are %lld to %lld", attribute.name,
             <long long>value[0], <long long>attribute.lowest, <long long>attribute.highest)
    return refuse(node, problem)


cdef Status read_input_shape(const Node* node, size_t i, Tensor* shape) noexcept nogil:
    """Read what is known of an input's shape at session creation; rank 0 where nothing is, or for a scalar."""
    cdef OrtTypeInfo* info = NULL
    cdef const TensorInfo* tensor = NULL
    cdef Status status = node.api.KernelInfo_GetInputTypeInfo(node.info, i, &info)
    shape.rank = 0
    if status != NULL:
        return status
    status = node.api.CastTypeInfoToTensorInfo(info, &tensor)
    if status == NULL and tensor != NULL:
        status = read_shape(node.api, tensor, shape)
    node.api.ReleaseTypeInfo(info)
    return status


cdef Status check_axis(const Node* node, int64_t axis, size_t rank) noexcept nogil:
    cdef char problem[MESSAGE]
    if -<int64_t>rank <= axis < <int64_t>rank:
        return NULL
    snprintf(problem, sizeof(problem), "attribute 'axis' is %lld, legal are %lld to %lld for an input of rank %zu",
             <long long>axis, -<long long>rank, <long long>rank - 1, rank)
    return refuse(node, problem)


cdef Status read_choice(const Node* node, const char* name, const char** legal, int n, int* choice) noexcept nogil:
    """Read a string attribute as the index of one of the legal strings, of which the first is the default."""
    cdef char value[64]
    cdef size_t size = 0
    cdef int i
    cdef Status status = node.api.KernelInfoGetAttribute_string(node.info, name, NULL, &size)
    if status != NULL and is_missing(node, status):
        node.api.ReleaseStatus(status)
        choice[0] = 0
        return NULL
    if status != NULL:
        return refuse_type(node, status, name, "a string")
    if size > sizeof(value):
        return refuse_choice(node, name, "(a long text)", legal, n)
    status = node.api.KernelInfoGetAttribute_string(node.info, name, value, &size)
    if status != NULL:
        return status
    for i in range(n):
        if strcmp(value, legal[i]) == 0:
            choice[0] = i
            return NULL
    return refuse_choice(node, name, value, legal, n)


cdef Status refuse_choice(const Node* node, const char* name, const char* value, const char** legal, int n) noexcept nogil:
    cdef char problem[MESSAGE]
    cdef int i, used = snprintf(problem, sizeof(problem), "attribute '%s' is '%s', legal are", name, value)
    for i in range(n):
        if 0 <= used < <int>sizeof(problem):
            used += snprintf(problem + used, sizeof(problem) - <size_t>used, ", %s" if i else " %s", legal[i])
    return refuse(node, problem)
