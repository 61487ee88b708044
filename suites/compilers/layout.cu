// Images of halves in the layouts NCHW (channels in planes) and NHWC (channels side by side), and the same operations on
// matrices, whose columns are channels. A vector is eight halves: 16 bytes.
//
//   WHAT  0 adds a bias, 1 normalises by mean, variance, weight and bias, 2 multiplies by a scale and adds a shift
//   LOOP  vectors of a thread of `lines`, whose loads are all in flight at the same time
#define EPSILON 1e-5f
#define TILE 64
#define THREADS 256  // of most blocks

static __device__ __forceinline__ void widen(const uint4& v, float (&wide)[8]) {
    gb_halves(v.x, wide[0], wide[1]);
    gb_halves(v.y, wide[2], wide[3]);
    gb_halves(v.z, wide[4], wide[5]);
    gb_halves(v.w, wide[6], wide[7]);
}

static __device__ __forceinline__ float of_half(unsigned short half) {
    float value, other;
    gb_halves(half, value, other);
    return value;
}

#ifdef __CUDA_ARCH__
static __device__ __forceinline__ u32 word_of(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
// 1 / √x within 2^-22 of it, without the branches of an exact one.
static __device__ __forceinline__ float inverse_root(float x) {
    float found;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}
#else
static __device__ __forceinline__ u32 word_of(float low, float high) {
    return (u32)gb_to_half(low) | (u32)gb_to_half(high) << 16;
}
static __device__ __forceinline__ float inverse_root(float x) { return 1 / sqrtf(x); }
#endif

static __device__ __forceinline__ uint4 narrow(const float (&wide)[8]) {
    return make_uint4(word_of(wide[0], wide[1]), word_of(wide[2], wide[3]), word_of(wide[4], wide[5]),
                      word_of(wide[6], wide[7]));
}

// What a channel is multiplied by, and what is added to it. `a` is the bias (WHAT 0), the mean (1) or the scale (2).
static __device__ __forceinline__ void factors(float a, float b, float c, float d, float& scale, float& shift) {
    scale = WHAT == 0 ? 1.0f : WHAT == 1 ? c * inverse_root(b + EPSILON) : a;
    shift = WHAT == 0 ? a : WHAT == 1 ? d - a * scale : b;
}

// One block for each plane of `vectors` vectors; plane p has channel p % channels.
extern "C" __global__ void __launch_bounds__(128)
    planes(const uint4* __restrict__ x, const unsigned short* __restrict__ a, const unsigned short* __restrict__ b,
           const unsigned short* __restrict__ c, const unsigned short* __restrict__ d, uint4* __restrict__ out, u32 vectors, u32 channels) {
    const u32 channel = blockIdx.x % channels;
    const u64 first = (u64)blockIdx.x * vectors;
    float scale, shift, wide[8];
    factors(of_half(a[channel]), of_half(b[channel]), of_half(c[channel]), of_half(d[channel]), scale, shift);
#pragma unroll 4
    for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) {
        widen(gb_fetch(x + first + i), wide);
#pragma unroll
        for (int k = 0; k < 8; ++k) wide[k] = wide[k] * scale + shift;
        out[first + i] = narrow(wide);
    }
}

// Channels side by side: `groups` vectors hold one number for each channel. A thread has LOOP vectors of the same channels,
// `span` vectors apart: the least common multiple of `groups` and the threads of a block.
extern "C" __global__ void __launch_bounds__(THREADS)
    lines(const uint4* __restrict__ x, const uint4* __restrict__ a, const uint4* __restrict__ b,
          const uint4* __restrict__ c, const uint4* __restrict__ d, uint4* __restrict__ out, u64 vectors, u32 groups,
          u32 span) {
    const u32 pieces = span / THREADS, within = blockIdx.x % pieces * THREADS + threadIdx.x, group = within % groups;
    const u64 first = (u64)(blockIdx.x / pieces) * LOOP * span + within;
    uint4 held[LOOP];
#pragma unroll
    for (int j = 0; j < LOOP; ++j)
        if (first + j * span < vectors) held[j] = gb_fetch(x + first + j * span);
    float scale[8], shift[8], wide[8];
    {
        float of_a[8], of_b[8], of_c[8], of_d[8];
        widen(a[group], of_a), widen(b[group], of_b), widen(c[group], of_c), widen(d[group], of_d);
#pragma unroll
        for (int k = 0; k < 8; ++k) factors(of_a[k], of_b[k], of_c[k], of_d[k], scale[k], shift[k]);
    }
#pragma unroll
    for (int j = 0; j < LOOP; ++j)
        if (first + j * span < vectors) {
            widen(held[j], wide);
#pragma unroll
            for (int k = 0; k < 8; ++k) wide[k] = wide[k] * scale[k] + shift[k];
            out[first + j * span] = narrow(wide);
        }
}

// The transpose of blockIdx.y's matrix of rows × cols halves, both even, in tiles; a word is two halves of a row.
extern "C" __global__ void __launch_bounds__(THREADS)
    transpose(const u32* __restrict__ in, u32* __restrict__ out, u32 rows, u32 cols) {
    __shared__ u32 tile[TILE][TILE / 2 + 1];
    const u32 across = (cols + TILE - 1) / TILE;
    const u32 left = blockIdx.x % across * TILE, top = blockIdx.x / across * TILE;
    const u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    const u64 matrix = (u64)blockIdx.y * rows * cols / 2;
#pragma unroll
    for (u32 line = 0; line < TILE; line += 8) {
        const u64 row = top + line + y, col = left + 2 * x;
        if (row < rows && col < cols) tile[line + y][x] = in[matrix + (row * cols + col) / 2];
    }
    __syncthreads();
#pragma unroll
    for (u32 word = 0; word < TILE / 2; word += 8) {
        const u64 row = top + 2 * x, col = left + 2 * (word + y);
        if (row < rows && col < cols) {
            const u32 upper = tile[2 * x][word + y], lower = tile[2 * x + 1][word + y];
            out[matrix + (col * rows + row) / 2] = (upper & 0xffffu) | lower << 16;
            out[matrix + ((col + 1) * rows + row) / 2] = upper >> 16 | (lower & 0xffff0000u);
        }
    }
}

static __device__ __forceinline__ void most(const uint4& v, float (&found)[8]) {
    float other[8];
    widen(v, other);
#pragma unroll
    for (int k = 0; k < 8; ++k) found[k] = fmaxf(found[k], other[k]);
}

// The maximum of each 2 × 2 halves of planes `side` wide, a multiple of 8: one vector of two rows makes four halves.
extern "C" __global__ void __launch_bounds__(THREADS)
    pool_planes(const uint4* __restrict__ x, uint2* __restrict__ out, u32 vectors, u32 side) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x, wide = side / 8;
    if (i >= vectors) return;
    const uint4* corner = x + ((u64)(i / wide) * 2 * wide + i % wide);
    float found[8];
    const uint4 upper = gb_fetch(corner), lower = gb_fetch(corner + wide);
    widen(upper, found);
    most(lower, found);
    out[i] = make_uint2(word_of(fmaxf(found[0], found[1]), fmaxf(found[2], found[3])),
                        word_of(fmaxf(found[4], found[5]), fmaxf(found[6], found[7])));
}

// The same with channels side by side, `groups` vectors of them; `side` is even.
extern "C" __global__ void __launch_bounds__(THREADS)
    pool_lines(const uint4* __restrict__ x, uint4* __restrict__ out, u32 vectors, u32 side, u32 groups) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x, place = i / groups, half = side / 2;
    if (i >= vectors) return;
    const uint4* corner = x + (((u64)(place / half) * 2 * side + place % half * 2) * groups + i % groups);
    const uint4 a = gb_fetch(corner), b = gb_fetch(corner + groups);
    const uint4 c = gb_fetch(corner + (u64)side * groups), d = gb_fetch(corner + (u64)(side + 1) * groups);
    float found[8];
    widen(a, found);
    most(b, found), most(c, found), most(d, found);
    out[i] = narrow(found);
}
