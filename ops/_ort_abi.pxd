# The part of ONNX Runtime's C ABI that a custom operator needs, declared from the public C API (version 17).
#
# OrtApi is an append-only table of function pointers: the members used here are typed, the rest is padding, and
# the number in a comment is the index of the first member that follows it. tests/test_ops_abi.py checks the indices.

from libc.stdint cimport int64_t, uint32_t

cdef extern from *:
    """
    typedef struct OrtStatus OrtStatus;
    typedef struct OrtValue OrtValue;
    typedef struct OrtTypeInfo OrtTypeInfo;
    typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
    typedef struct OrtSessionOptions OrtSessionOptions;
    typedef struct OrtCustomOpDomain OrtCustomOpDomain;
    typedef struct OrtKernelInfo OrtKernelInfo;
    typedef struct OrtKernelContext OrtKernelContext;
    typedef struct OrtShapeInferContext OrtShapeInferContext;
    """
    ctypedef struct OrtStatus:
        pass
    ctypedef struct OrtValue:
        pass
    ctypedef struct OrtTypeInfo:
        pass
    ctypedef struct OrtTensorTypeAndShapeInfo:
        pass
    ctypedef struct OrtSessionOptions:
        pass
    ctypedef struct OrtCustomOpDomain:
        pass
    ctypedef struct OrtKernelInfo:
        pass
    ctypedef struct OrtKernelContext:
        pass
    ctypedef struct OrtShapeInferContext:
        pass

cdef enum:
    API_VERSION = 17
    INVALID_ARGUMENT = 2  # OrtErrorCode

cdef enum OrtElementType:
    UNDEFINED = 0
    FLOAT32 = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    FLOAT16 = 10
    UINT32 = 12
    BFLOAT16 = 16
    UINT4 = 21
    INT4 = 22
    UINT2 = 25
    INT2 = 26

ctypedef OrtStatus* Status
ctypedef OrtTensorTypeAndShapeInfo TensorInfo

cdef struct OrtApi:
    OrtStatus* (*CreateStatus)(int code, const char* message) noexcept nogil
    int (*GetErrorCode)(const OrtStatus* status) noexcept nogil
    const char* (*GetErrorMessage)(const OrtStatus* status) noexcept nogil
    void* _pad0[23]  # 26
    Status (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out) noexcept nogil
    Status (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op) noexcept nogil
    Status (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain) noexcept nogil
    void* _pad1[22]  # 51
    Status (*GetTensorMutableData)(OrtValue* value, void** out) noexcept nogil
    void* _pad2[3]  # 55
    Status (*CastTypeInfoToTensorInfo)(const OrtTypeInfo* info, const TensorInfo** out) noexcept nogil
    void* _pad3[2]  # 58
    Status (*SetTensorElementType)(TensorInfo* info, int element_type) noexcept nogil
    void* _pad4[1]  # 60
    Status (*GetTensorElementType)(const TensorInfo* info, int* out) noexcept nogil
    Status (*GetDimensionsCount)(const TensorInfo* info, size_t* out) noexcept nogil
    Status (*GetDimensions)(const TensorInfo* info, int64_t* dims, size_t n) noexcept nogil
    Status (*GetSymbolicDimensions)(const TensorInfo* info, const char** names, size_t n) noexcept nogil
    Status (*GetTensorShapeElementCount)(const TensorInfo* info, size_t* out) noexcept nogil
    Status (*GetTensorTypeAndShape)(const OrtValue* value, TensorInfo** out) noexcept nogil
    void* _pad5[20]  # 86
    Status (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* out) noexcept nogil
    Status (*KernelInfoGetAttribute_string)(const OrtKernelInfo* info, const char* name, char* out, size_t* size) \
        noexcept nogil
    void* _pad6[2]  # 90
    Status (*KernelContext_GetInput)(const OrtKernelContext* context, size_t i, const OrtValue** out) noexcept nogil
    Status (*KernelContext_GetOutput)(OrtKernelContext* context, size_t i, const int64_t* dims, size_t n,
                                      OrtValue** out) noexcept nogil
    void* _pad7[1]  # 93
    void (*ReleaseStatus)(OrtStatus* status) noexcept nogil
    void* _pad8[4]  # 98
    void (*ReleaseTypeInfo)(OrtTypeInfo* info) noexcept nogil
    void (*ReleaseTensorTypeAndShapeInfo)(TensorInfo* info) noexcept nogil
    void* _pad9[134]  # 234
    Status (*KernelInfo_GetInputTypeInfo)(const OrtKernelInfo* info, size_t i, OrtTypeInfo** out) noexcept nogil
    void* _pad10[9]  # 244
    Status (*KernelInfo_GetNodeName)(const OrtKernelInfo* info, char* out, size_t* size) noexcept nogil
    void* _pad11[23]  # 268
    Status (*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext* context, size_t i,
                                                  TensorInfo** out) noexcept nogil
    void* _pad12[1]  # 270
    Status (*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext* context, size_t i,
                                                   const TensorInfo* info) noexcept nogil
    Status (*SetSymbolicDimensions)(TensorInfo* info, const char** names, size_t n) noexcept nogil
    void* _pad13[2]  # 274
    Status (*KernelContext_ParallelFor)(const OrtKernelContext* context, void (*work)(void*, size_t) noexcept nogil,
                                        size_t total, size_t batches, void* data) noexcept nogil

cdef struct OrtApiBase:
    const OrtApi* (*GetApi)(uint32_t version) noexcept nogil
    const char* (*GetVersionString)() noexcept nogil

cdef struct OrtCustomOp:
    uint32_t version
    void* CreateKernel  # replaced by CreateKernelV2
    const char* (*GetName)(const OrtCustomOp* op) noexcept nogil
    const char* (*GetExecutionProviderType)(const OrtCustomOp* op) noexcept nogil
    int (*GetInputType)(const OrtCustomOp* op, size_t i) noexcept nogil
    size_t (*GetInputTypeCount)(const OrtCustomOp* op) noexcept nogil
    int (*GetOutputType)(const OrtCustomOp* op, size_t i) noexcept nogil
    size_t (*GetOutputTypeCount)(const OrtCustomOp* op) noexcept nogil
    void* KernelCompute  # replaced by KernelComputeV2
    void (*KernelDestroy)(void* kernel) noexcept nogil
    int (*GetInputCharacteristic)(const OrtCustomOp* op, size_t i) noexcept nogil
    int (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t i) noexcept nogil
    int (*GetInputMemoryType)(const OrtCustomOp* op, size_t i) noexcept nogil
    int (*GetVariadicInputMinArity)(const OrtCustomOp* op) noexcept nogil
    int (*GetVariadicInputHomogeneity)(const OrtCustomOp* op) noexcept nogil
    int (*GetVariadicOutputMinArity)(const OrtCustomOp* op) noexcept nogil
    int (*GetVariadicOutputHomogeneity)(const OrtCustomOp* op) noexcept nogil
    Status (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                             void** kernel) noexcept nogil
    Status (*KernelComputeV2)(void* kernel, OrtKernelContext* context) noexcept nogil
    Status (*InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept nogil
    int (*GetStartVersion)(const OrtCustomOp* op) noexcept nogil
    int (*GetEndVersion)(const OrtCustomOp* op) noexcept nogil
