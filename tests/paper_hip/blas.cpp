// Plain products on paper, in place of libhipblas.so.3: column-major, by NumPy's OpenBLAS in float or double, on the stream
// of the handle.
#include <hip/hip_runtime_api.h>
#include <stdint.h>
#include <string.h>

#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))
// of the OpenBLAS that NumPy's wheel has; orders and transpositions as CBLAS numbers them
extern "C" void scipy_cblas_sgemm64_(int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                                     const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
extern "C" void scipy_cblas_dgemm64_(int order, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, double alpha,
                                     const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
                                     int64_t ldc);

namespace {
enum { DONE = 0, INVALID = 3, UNSUPPORTED = 7 };
enum { AS_IT_IS = 111 };  // CBLAS and hipBLAS number transpositions alike
struct Handle {
    hipStream_t stream = nullptr;
    int mode = 0;
};

// Types as hipDataType numbers them, and as hipblasDatatype_t did before ROCm 7.
enum Type { FLOAT, DOUBLE, HALF, BYTE, WORD, NONE };
Type type_of(int number) {
    switch (number) {
        case 0: case 151: return FLOAT;
        case 1: case 152: return DOUBLE;
        case 2: case 150: return HALF;
        case 3: case 160: return BYTE;
        case 10: case 162: return WORD;
        default: return NONE;
    }
}
size_t bytes_of(Type type) { return type == DOUBLE ? 8 : type == HALF ? 2 : type == BYTE ? 1 : 4; }

template <class TO, class FROM>
void convert(TO* to, const FROM* from, size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = (TO)from[i];
}
template <class TO>
void load(TO* to, const void* from, Type type, size_t first, size_t count) {
    switch (type) {
        case FLOAT: return convert(to, (const float*)from + first, count);
        case DOUBLE: return convert(to, (const double*)from + first, count);
        case HALF: return convert(to, (const _Float16*)from + first, count);
        case BYTE: return convert(to, (const int8_t*)from + first, count);
        default: return convert(to, (const int32_t*)from + first, count);
    }
}
template <class FROM>
void store(void* to, const FROM* from, Type type, size_t first, size_t count) {
    switch (type) {
        case FLOAT: return convert((float*)to + first, from, count);
        case DOUBLE: return convert((double*)to + first, from, count);
        case HALF: return convert((_Float16*)to + first, from, count);
        case BYTE: return convert((int8_t*)to + first, from, count);
        default: return convert((int32_t*)to + first, from, count);
    }
}
// The columns of a matrix, one after another.
template <class TO>
std::vector<TO> columns_of(const char* matrix, Type type, int rows, int columns, long long leading) {
    std::vector<TO> found((size_t)rows * columns);
    for (size_t j = 0; j < (size_t)columns; ++j) load(&found[j * rows], matrix, type, j * leading, rows);
    return found;
}
void multiply(int ta, int tb, int m, int n, int k, const float* a, const float* b, float* c) {
    scipy_cblas_sgemm64_(102, ta, tb, m, n, k, 1, a, ta == AS_IT_IS ? m : k, b, tb == AS_IT_IS ? k : n, 0, c, m);
}
void multiply(int ta, int tb, int m, int n, int k, const double* a, const double* b, double* c) {
    scipy_cblas_dgemm64_(102, ta, tb, m, n, k, 1, a, ta == AS_IT_IS ? m : k, b, tb == AS_IT_IS ? k : n, 0, c, m);
}

struct Product {
    int trans_a, trans_b, m, n, k, count;
    const char *a, *b;
    char* c;
    Type type_a, type_b, type_c;
    long long lda, ldb, ldc, stride_a, stride_b, stride_c;
    double alpha, beta;

    template <class SUM>
    void run() const {
        std::vector<SUM> sums((size_t)m * n), before(m);
        for (int each = 0; each < count; ++each) {
            const char* const x = a + each * stride_a * (long long)bytes_of(type_a);
            const char* const y = b + each * stride_b * (long long)bytes_of(type_b);
            char* const z = c + each * stride_c * (long long)bytes_of(type_c);
            const bool is_a = trans_a == AS_IT_IS, is_b = trans_b == AS_IT_IS;
            multiply(trans_a, trans_b, m, n, k, columns_of<SUM>(x, type_a, is_a ? m : k, is_a ? k : m, lda).data(),
                     columns_of<SUM>(y, type_b, is_b ? k : n, is_b ? n : k, ldb).data(), sums.data());
            for (size_t j = 0; j < (size_t)n; ++j) {
                if (beta != 0) load(before.data(), z, type_c, j * ldc, m);
                for (size_t i = 0; i < (size_t)m; ++i) sums[j * m + i] = (SUM)(alpha * sums[j * m + i] + beta * before[i]);
                store(z, &sums[j * m], type_c, j * ldc, m);
            }
        }
    }
};

void run_product(void* data) {
    Product* product = (Product*)data;
    if (product->type_c == DOUBLE || product->type_c == WORD) product->run<double>();
    else product->run<float>();
    delete product;
}

int queued(void* handle, Product product) {
    if (product.type_a == NONE || product.type_b == NONE || product.type_c == NONE) return UNSUPPORTED;
    if (product.m < 1 || product.n < 1 || product.k < 1) return INVALID;
    return hipLaunchHostFunc(((Handle*)handle)->stream, run_product, new Product(product)) == hipSuccess ? DONE : INVALID;
}

double scalar(const void* at, Type type) { return type == DOUBLE ? *(const double*)at : type == WORD ? *(const int*)at : *(const float*)at; }
}  // namespace

EXPORT int hipblasCreate(void** handle) { return *handle = new Handle, DONE; }
EXPORT int hipblasDestroy(void* handle) { return delete (Handle*)handle, DONE; }
EXPORT int hipblasSetStream(void* handle, hipStream_t stream) { return ((Handle*)handle)->stream = stream, DONE; }
EXPORT int hipblasGetStream(void* handle, hipStream_t* stream) { return *stream = ((Handle*)handle)->stream, DONE; }
EXPORT int hipblasSetPointerMode(void* handle, int mode) { return ((Handle*)handle)->mode = mode, DONE; }
EXPORT int hipblasGetPointerMode(void* handle, int* mode) { return *mode = ((Handle*)handle)->mode, DONE; }

#define PLAIN(NAME, REAL, TYPE)                                                                                          \
    EXPORT int NAME(void* handle, int ta, int tb, int m, int n, int k, const REAL* alpha, const REAL* a, int lda,         \
                    const REAL* b, int ldb, const REAL* beta, REAL* c, int ldc) {                                         \
        return queued(handle, {ta, tb, m, n, k, 1, (const char*)a, (const char*)b, (char*)c, TYPE, TYPE, TYPE, lda, ldb,  \
                               ldc, 0, 0, 0, *alpha, *beta});                                                             \
    }                                                                                                                     \
    EXPORT int NAME##StridedBatched(void* handle, int ta, int tb, int m, int n, int k, const REAL* alpha, const REAL* a,  \
                                    int lda, long long sa, const REAL* b, int ldb, long long sb, const REAL* beta,        \
                                    REAL* c, int ldc, long long sc, int count) {                                          \
        return queued(handle, {ta, tb, m, n, k, count, (const char*)a, (const char*)b, (char*)c, TYPE, TYPE, TYPE, lda,   \
                               ldb, ldc, sa, sb, sc, *alpha, *beta});                                                     \
    }
PLAIN(hipblasSgemm, float, FLOAT)
PLAIN(hipblasDgemm, double, DOUBLE)

EXPORT int hipblasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a,
                         int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int,
                         int) {
    const Type of_c = type_of(type_c);
    return queued(handle, {ta, tb, m, n, k, 1, (const char*)a, (const char*)b, (char*)c, type_of(type_a), type_of(type_b),
                           of_c, lda, ldb, ldc, 0, 0, 0, scalar(alpha, of_c), scalar(beta, of_c)});
}
EXPORT int hipblasGemmStridedBatchedEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a,
                                       int type_a, int lda, long long sa, const void* b, int type_b, int ldb, long long sb,
                                       const void* beta, void* c, int type_c, int ldc, long long sc, int count, int, int) {
    const Type of_c = type_of(type_c);
    return queued(handle, {ta, tb, m, n, k, count, (const char*)a, (const char*)b, (char*)c, type_of(type_a),
                           type_of(type_b), of_c, lda, ldb, ldc, sa, sb, sc, scalar(alpha, of_c), scalar(beta, of_c)});
}
