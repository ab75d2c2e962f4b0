# The memory of arrays that Python hands over, through the buffer protocol. Typed memoryviews of Cython would do it with
# 30,000 more lines of C, which take a fifth of the time that the library is compiled in.


cdef bint is_of_kind(const char* format, const char* codes) noexcept:
    """Whether the items of a buffer are of one of some codes of the module struct, in the machine's own byte order."""
    if format == NULL:
        format = "B"
    if format[0] == b"@" or format[0] == b"=":
        format += 1
    return strchr(codes, format[0]) != NULL and format[1] == 0


cdef class Array:
    """A contiguous array [d0, d1, d2] of numbers, held as long as this lives; missing dimensions are 1."""

    cdef Py_buffer held
    cdef char* data
    cdef size_t d0, d1, d2

    def __cinit__(self, source, str kind, Py_ssize_t item, int dims, bint writable=False):
        """Take an array of floats (kind "f"), integers ("i") or unsigned integers ("u") of so many bytes."""
        cdef const char* codes = "fd" if kind == "f" else "bhilq" if kind == "i" else "BHILQ?"
        PyObject_GetBuffer(source, &self.held, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        if self.held.ndim != dims or self.held.itemsize != item or not is_of_kind(self.held.format, codes):
            raise ValueError(f"an array of {self.held.ndim} dimensions and items of {self.held.itemsize} bytes, "
                             f"not of {dims} and {kind}{item}")
        self.data = <char*>self.held.buf
        self.d0 = <size_t>self.held.shape[0]
        self.d1 = <size_t>self.held.shape[1] if dims > 1 else 1
        self.d2 = <size_t>self.held.shape[2] if dims > 2 else 1

    def __dealloc__(self):
        PyBuffer_Release(&self.held)


cdef Array floats(source, int dims=1, bint writable=False):
    return Array(source, "f", 4, dims, writable)


cdef Array doubles(source, int dims=1, bint writable=False):
    return Array(source, "f", 8, dims, writable)


cdef Array halves(source, bint writable=False):
    """Return an array of 16-bit numbers, by their bits."""
    return Array(source, "u", 2, 1, writable)


cdef Array octets(source, bint writable=False):
    return Array(source, "u", 1, 1, writable)
