// C = A·Bᵀ of halves with sums in float, all matrices row-major with rows of `inner` or `columns` elements; the ladder's
// rungs without matrix instructions. The sides are multiples of the tiles.

#define HGEMM_PARAMETERS const u16 *__restrict__ a, const u16 *__restrict__ b, u16 *__restrict__ c, u32 rows, u32 columns, u32 inner
typedef unsigned short u16;

static __device__ __forceinline__ float widened(u16 half) {
    float low, high;
    gb_halves(half, low, high);
    return low;
}

// A thread computes one element of C and reads a row of A and of B for it.
extern "C" __global__ void __launch_bounds__(256) naive(HGEMM_PARAMETERS) {
    const u32 row = blockIdx.y * 16 + threadIdx.x / 16, column = blockIdx.x * 16 + threadIdx.x % 16;
    float sum = 0;
    for (u32 k = 0; k < inner; ++k) sum += widened(a[(u64)row * inner + k]) * widened(b[(u64)column * inner + k]);
    c[(u64)row * columns + column] = gb_to_half(sum);
}
