# The table of all operators, and the two ways in which ONNX Runtime gets to know them.

cdef Operator own_operators[OPERATORS]  # in domain com.amd.quark, registered by this library
cdef Operator shared_operators[OPERATORS]  # in domain ai.onnx.contrib, registered by onnxruntime-extensions
cdef Operator show_operator  # in domain narrow.show, registered by this library
cdef OrtCustomOpDomain* own_domain  # never freed: sessions keep pointers to it
cdef OrtCustomOpDomain* show_domain
cdef const OrtApi* shape_api  # what infer_shape calls, which is not handed one
cdef long fresh_names

ctypedef bint (*AddExternalCustomOp)(const OrtCustomOp* op) noexcept nogil


cdef void fill_operators(Operator* operators, bint shares_domain) noexcept nogil:
    cdef int[8] stored_types = [UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT16, BFLOAT16]
    cdef int[3] float_types = [FLOAT32, FLOAT16, BFLOAT16]
    cdef int i
    for i in range(8):
        fill_operator(&operators[2 * i], QUANTIZE, stored_types[i], shares_domain)
        fill_operator(&operators[2 * i + 1], DEQUANTIZE, stored_types[i], shares_domain)
    for i in range(3):
        fill_operator(&operators[16 + 2 * i], BFP, float_types[i], shares_domain)
        fill_operator(&operators[16 + 2 * i + 1], MX, float_types[i], shares_domain)


cdef Status create_domain(const OrtApi* api, OrtCustomOpDomain** domain) noexcept nogil:
    cdef int i
    cdef Status status = api.CreateCustomOpDomain("com.amd.quark", domain)
    fill_operators(own_operators, False)
    for i in range(OPERATORS):
        if status == NULL:
            status = api.CustomOpDomain_Add(domain[0], &own_operators[i].abi)
    return status


cdef Status create_show_domain(const OrtApi* api, OrtCustomOpDomain** domain) noexcept nogil:
    cdef Status status = api.CreateCustomOpDomain("narrow.show", domain)
    fill_operator(&show_operator, SHOW, UNDEFINED, False)
    return api.CustomOpDomain_Add(domain[0], &show_operator.abi) if status == NULL else status


cdef public OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) noexcept nogil:
    """What ONNX Runtime calls when a session registers this library. Python's lock is held, so there is one at a time."""
    global own_domain, show_domain, shape_api
    cdef const OrtApi* api = base.GetApi(API_VERSION)
    cdef OrtCustomOpDomain* domain = NULL
    cdef OrtCustomOpDomain* showing = NULL
    cdef Status status
    if api == NULL:
        return NULL  # older than ONNX Runtime 1.17: it has no way to be told more
    shape_api = api
    if own_domain == NULL:
        status = create_domain(api, &domain)
        if status != NULL:
            return status
        status = create_show_domain(api, &showing)
        if status != NULL:
            return status
        own_domain, show_domain = domain, showing
    status = api.AddCustomOpDomain(options, own_domain)
    return api.AddCustomOpDomain(options, show_domain) if status == NULL else status


def add_to_extensions(size_t add_external_custom_op):
    """Hand all operators to onnxruntime-extensions, given the address of its function AddExternalCustomOp."""
    cdef int i
    fill_operators(shared_operators, True)
    for i in range(OPERATORS):
        if not (<AddExternalCustomOp>add_external_custom_op)(&shared_operators[i].abi):
            raise OSError("onnxruntime-extensions refused an operator of ops")


def knows_runtime():
    """Whether ONNX Runtime has handed its functions to this library, which shape inference needs."""
    return shape_api != NULL
