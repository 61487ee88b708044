// STREAM kernels on arrays of n elements of REAL, in vectors of WIDTH bytes. n is a multiple of LANES. The data are a
// function of (seed, index), so that a check needs no second copy of them.
#define LANES ((int)(WIDTH / sizeof(REAL)))
#define THREADS 1024  // most threads of a block, which has whole warps
#define BATCH 4       // loads in flight per thread in kernels that only read

struct alignas(WIDTH) Vector {
    REAL x[LANES];
};

// Element i of the random data of a seed: uniform in [-1, 1) on a grid of 2^-23 (float) or 2^-52 (double). With factors
// that are powers of two, every kernel here rounds at most once, with or without fused multiply-add, so results compare
// exactly.
static __device__ __forceinline__ REAL drawn(u64 seed, u64 i) {
    const int bits = sizeof(REAL) == 4 ? 24 : 53;
    return (REAL)(gb_random(seed, i) >> (64 - bits)) * ((REAL)1 / (REAL)(1ULL << (bits - 1))) - (REAL)1;
}

static __device__ __forceinline__ Vector drawn_vector(u64 seed, u64 i) {
    Vector v;
    for (int lane = 0; lane < LANES; ++lane) v.x[lane] = drawn(seed, i * LANES + lane);
    return v;
}

#define EACH(i) for (u64 i = gb_thread(); i < n / LANES; i += gb_threads())

extern "C" __global__ void __launch_bounds__(THREADS) fill(Vector* a, u64 n, u64 seed) {
#pragma unroll 1
    EACH(i) a[i] = drawn_vector(seed, i);
}

extern "C" __global__ void __launch_bounds__(THREADS) write(Vector* __restrict__ a, u64 n, REAL value) {
    Vector v;
    for (int lane = 0; lane < LANES; ++lane) v.x[lane] = value;
    EACH(i) a[i] = v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    copy(Vector* __restrict__ a, const Vector* __restrict__ b, u64 n) {
    EACH(i) a[i] = b[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scale(Vector* __restrict__ a, const Vector* __restrict__ b, u64 n, REAL s) {
    EACH(i) {
        Vector v = b[i];
        for (int lane = 0; lane < LANES; ++lane) v.x[lane] *= s;
        a[i] = v;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add(Vector* __restrict__ a, const Vector* __restrict__ b, const Vector* __restrict__ c, u64 n) {
    EACH(i) {
        Vector v = b[i], w = c[i];
        for (int lane = 0; lane < LANES; ++lane) v.x[lane] += w.x[lane];
        a[i] = v;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    triad(Vector* __restrict__ a, const Vector* __restrict__ b, const Vector* __restrict__ c, u64 n, REAL s) {
    EACH(i) {
        Vector v = b[i], w = c[i];
        for (int lane = 0; lane < LANES; ++lane) v.x[lane] += s * w.x[lane];
        a[i] = v;
    }
}

struct Xor {
    __device__ __forceinline__ u64 operator()(u64 x, u64 y) const { return x ^ y; }
};

struct Sum {
    __device__ __forceinline__ double operator()(double x, double y) const { return x + y; }
};

// Reduces one value per thread to one per block, valid in thread 0.
template <class A, class F>
static __device__ __forceinline__ A folded(A mine, F fold) {
    __shared__ A warps[THREADS / 32];
    for (int lane = warpSize / 2; lane > 0; lane /= 2) mine = fold(mine, gb_shuffle_xor(mine, lane));
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < (int)(blockDim.x / warpSize); ++warp) mine = fold(mine, warps[warp]);
    return mine;
}

static __device__ __forceinline__ u64 bits_of(Vector v) {
    union {
        Vector v;
        u32 word[WIDTH / 4];
    } both;
    both.v = v;
    u32 halves[2] = {};
    for (int word = 0; word < WIDTH / 4; ++word) halves[word % 2] ^= both.word[word];
    return halves[0] | (u64)halves[1] << 32;
}

extern "C" __global__ void __launch_bounds__(THREADS) read(const Vector* __restrict__ b, u64 n, u64* parts) {
    u64 mine = 0, i = gb_thread();
    const u64 step = gb_threads(), vectors = n / LANES;
    for (; i + (BATCH - 1) * step < vectors; i += BATCH * step) {
        Vector v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) v[k] = b[i + k * step];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) mine ^= bits_of(v[k]);
    }
    for (; i < vectors; i += step) mine ^= bits_of(b[i]);
    mine = folded(mine, Xor());
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

static __device__ __forceinline__ REAL product(Vector v, Vector w) {
    REAL sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += v.x[lane] * w.x[lane];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    dot(const Vector* __restrict__ b, const Vector* __restrict__ c, u64 n, double* parts) {
    double mine = 0;
    u64 i = gb_thread();
    const u64 step = gb_threads(), vectors = n / LANES;
    for (; i + (BATCH - 1) * step < vectors; i += BATCH * step) {
        Vector v[BATCH], w[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) v[k] = b[i + k * step], w[k] = c[i + k * step];
        REAL sum = 0;
#pragma unroll
        for (int k = 0; k < BATCH; ++k) sum += product(v[k], w[k]);
        mine += sum;
    }
    for (; i < vectors; i += step) mine += product(b[i], c[i]);
    mine = folded(mine, Sum());
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

// Checks: the expected results of `read` and `dot`, computed from the seeds alone, with sums in double precision. Their
// loops are not unrolled, because compile time matters more here than speed.
extern "C" __global__ void __launch_bounds__(THREADS) read_expected(u64 seed, u64 n, u64* parts) {
    u64 mine = 0;
#pragma unroll 1
    EACH(i) mine ^= bits_of(drawn_vector(seed, i));
    mine = folded(mine, Xor());
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

extern "C" __global__ void __launch_bounds__(THREADS) dot_expected(u64 seed_b, u64 seed_c, u64 n, double* parts) {
    double mine = 0;
#pragma unroll 1
    EACH(i)
#pragma unroll 1
    for (int lane = 0; lane < LANES; ++lane)
        mine += (double)drawn(seed_b, i * LANES + lane) * (double)drawn(seed_c, i * LANES + lane);
    mine = folded(mine, Sum());
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

// Counts, per block, the elements of a that differ from k + kb·b + kc·c.
extern "C" __global__ void __launch_bounds__(THREADS)
    mistakes(const Vector* a, u64 n, u64 seed_b, u64 seed_c, REAL k, REAL kb, REAL kc, double* parts) {
    double mine = 0;
#pragma unroll 1
    EACH(i) {
        Vector v = a[i];
        for (int lane = 0; lane < LANES; ++lane) {
            u64 at = i * LANES + lane;
            REAL expected = k + (kb * drawn(seed_b, at) + kc * drawn(seed_c, at));
            mine += v.x[lane] == expected ? 0 : 1;
        }
    }
    mine = folded(mine, Sum());
    if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}
