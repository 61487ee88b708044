// Plain products on paper, in place of libhipblas.so.3: column-major, in float or double, on the stream of the handle.
#include <hip/hip_runtime_api.h>
#include <stdint.h>
#include <string.h>

#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum { DONE = 0, INVALID = 3, UNSUPPORTED = 7 };
enum { TRANSPOSED = 112, CONJUGATED = 113 };
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

double element(const void* array, Type type, size_t i) {
    switch (type) {
        case FLOAT: return ((const float*)array)[i];
        case DOUBLE: return ((const double*)array)[i];
        case HALF: return (double)((const _Float16*)array)[i];
        case BYTE: return ((const int8_t*)array)[i];
        default: return ((const int32_t*)array)[i];
    }
}
void store(void* array, Type type, size_t i, double value) {
    switch (type) {
        case FLOAT: ((float*)array)[i] = (float)value; break;
        case DOUBLE: ((double*)array)[i] = value; break;
        case HALF: ((_Float16*)array)[i] = (_Float16)value; break;
        case BYTE: ((int8_t*)array)[i] = (int8_t)value; break;
        default: ((int32_t*)array)[i] = (int32_t)value;
    }
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
        std::vector<SUM> rows((size_t)m * k), columns((size_t)n * k);
        for (int each = 0; each < count; ++each) {
            const char* const x = a + each * stride_a * (long long)bytes_of(type_a);
            const char* const y = b + each * stride_b * (long long)bytes_of(type_b);
            char* const z = c + each * stride_c * (long long)bytes_of(type_c);
            for (size_t i = 0; i < (size_t)m; ++i)
                for (size_t p = 0; p < (size_t)k; ++p)
                    rows[i * k + p] = (SUM)element(x, type_a, trans_a >= TRANSPOSED ? p + i * lda : i + p * lda);
            for (size_t j = 0; j < (size_t)n; ++j)
                for (size_t p = 0; p < (size_t)k; ++p)
                    columns[j * k + p] = (SUM)element(y, type_b, trans_b >= TRANSPOSED ? j + p * ldb : p + j * ldb);
            for (size_t j = 0; j < (size_t)n; ++j)
                for (size_t i = 0; i < (size_t)m; ++i) {
                    SUM sum = 0;
                    for (size_t p = 0; p < (size_t)k; ++p) sum += rows[i * k + p] * columns[j * k + p];
                    const size_t at = i + j * ldc;
                    store(z, type_c, at, alpha * sum + (beta == 0 ? 0 : beta * element(z, type_c, at)));
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
    if (product.m < 0 || product.n < 0 || product.k < 0) return INVALID;
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
