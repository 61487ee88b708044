// How rtc.cpp launches a kernel of a module: with a copy of its arguments, taken apart when it runs. Several threads of the
// host may run blocks of one launch; each takes the next block that nobody has begun.
#define __host__
#define __constant__

namespace grid {
template <class... A>
static void* pack(void (*)(A...), void** arguments) {
    size_t i = 0;
    return new std::tuple<A...>{*(A*)arguments[i++]...};
}
template <class... A>
static void drop(void (*)(A...), void* packed) { delete (std::tuple<A...>*)packed; }
template <class... A>
struct Packed {
    static inline thread_local void (*kernel)(A...);
    static inline thread_local std::tuple<A...>* arguments;
    static void call() { std::apply(kernel, *arguments); }
};
constexpr u32 LOOKS = 256;  // at the clock, after which a block may be waiting for another one
static thread_local u32 looks;
static thread_local void (*may_wait)();
static inline void looked() {
    if (++looks % LOOKS == 0) may_wait();
}
template <class... A>
static void launch(void (*kernel)(A...), void* packed, const u32* across, const u32* size, u64* next, void (*waits)()) {
    Packed<A...>::kernel = kernel;
    Packed<A...>::arguments = (std::tuple<A...>*)packed;
    body = Packed<A...>::call;
    may_wait = waits;
    make_ready({across[0], across[1], across[2]}, {size[0], size[1], size[2]});
    const u64 blocks = (u64)across[0] * across[1] * across[2];
    for (u64 i; (i = __atomic_fetch_add(next, 1, __ATOMIC_SEQ_CST)) < blocks;) {
        blockIdx = {(u32)(i % across[0]), (u32)(i / across[0] % across[1]), (u32)(i / across[0] / across[1])};
        run_block();
    }
}
}  // namespace grid

// What hipRTC has of itself and CuPy's kernels use.
#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <limits>
#define __noinline__ __attribute__((noinline))
using std::max;
using std::min;
struct __half_raw { unsigned short x; };
struct half {
    _Float16 value;
    half() = default;
    half(const __half_raw& raw) { memcpy(&value, &raw, 2); }
    template <class NUMBER, class = std::enable_if_t<std::is_arithmetic_v<NUMBER>>>
    half(NUMBER number) : value((_Float16)number) {}
    operator float() const { return (float)value; }
    operator __half_raw() const {
        __half_raw raw;
        memcpy(&raw, &value, 2);
        return raw;
    }
};
static inline unsigned short __half_as_ushort(half value) { return __half_raw(value).x; }
static inline half __ushort_as_half(unsigned short bits) { return half(__half_raw{bits}); }
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline int __float_as_int(float value) { return (int)__float_as_uint(value); }
static inline float __int_as_float(int bits) { return __uint_as_float((u32)bits); }
static inline long long __double_as_longlong(double value) { long long bits; memcpy(&bits, &value, 8); return bits; }
static inline double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
template <class T>
static T atomicCAS(T* place, T expected, T wanted) {
    return atomically(place, [=](T old) { return old == expected ? wanted : old; });
}
template <class T> static T atomicMin(T* place, T other) { return atomically(place, [=](T old) { return std::min(old, other); }); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline int __popc(u32 word) { return __builtin_popcount(word); }
static inline int __clz(int word) { return word ? __builtin_clz((u32)word) : 32; }
static inline int __popcll(u64 word) { return __builtin_popcountll(word); }
static inline int __clzll(long long word) { return word ? __builtin_clzll((u64)word) : 64; }
static inline int __ffs(int word) { return __builtin_ffs(word); }

// Clocks that go on: that of all units follows the time; that of a unit counts 1.7 cycles for each nanosecond in which the
// host worked for it, so that twice as many steps take twice as many cycles while other programs run.
#include <time.h>
static inline u64 paper_nanoseconds(clockid_t clock = CLOCK_MONOTONIC) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
constexpr u64 ACCESS = 400;
static thread_local u64 waited;  // cycles in which a thread was not working
static inline long long clock64() {
    grid::looked();
    return (long long)(waited + paper_nanoseconds(CLOCK_THREAD_CPUTIME_ID) * 1.7);
}
static inline long long wall_clock64() { return (long long)(paper_nanoseconds() / 10); }
#define gb_clock() ((u64)clock64())
#define gb_nanoseconds() paper_nanoseconds()

// The rest of the prelude.
// Accesses by address take a few hundred cycles more than they do: a word of the host is there sooner than its clock is read.
template <class WORD> static WORD gb_vreg(WORD word) { return word; }
static inline u64 gb_load(u64 address) { return waited += ACCESS, *(const volatile u64*)address; }
#define gb_load_l2(...) paper_load_l2(__VA_ARGS__)
static inline u64 paper_load_l2(u64 address) { return gb_load(address); }
template <class T> static T paper_load_l2(const T* from) { return *from; }
#define gb_add(...) paper_add(__VA_ARGS__)
static inline u64 paper_add(u64 address, u64 value) { return waited += ACCESS, __atomic_fetch_add((u64*)address, value, __ATOMIC_SEQ_CST); }
static inline void gb_pause() {
    if (grid::workers.size() > 1) grid::let_others();
}
#define gb_block_xor(...) paper_block_xor(__VA_ARGS__)
static inline u64 paper_block_xor(u64 mine) {
    __shared__ u64 warps[32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) mine ^= gb_shuffle_xor(mine, mask);
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 warp = 1; warp < blockDim.x / warpSize; ++warp) mine ^= warps[warp];
    return mine;
}

struct ulonglong2 { u64 x, y; };
static inline ulonglong2 make_ulonglong2(u64 x, u64 y) { return {x, y}; }

// The compiler's own vectors, and its matrix instructions. rtc.cpp has g++ understand how kernels name such vectors.
template <class TO, class FROM>
static TO gb_as(const FROM& from) {
    static_assert(sizeof(TO) == sizeof(FROM), "the same bits");
    TO to;
    memcpy(&to, &from, sizeof(TO));
    return to;
}
typedef _Float16 gb_half2 __attribute__((vector_size(4)));
typedef _Float16 gb_half4 __attribute__((vector_size(8)));
typedef _Float16 gb_half8 __attribute__((vector_size(16)));
typedef short gb_short4 __attribute__((vector_size(8)));
typedef float gb_float4 __attribute__((vector_size(16)));
static inline gb_half2 __builtin_elementwise_fma(gb_half2 a, gb_half2 b, gb_half2 c) {
    return gb_half2{(_Float16)((float)a[0] * (float)b[0] + (float)c[0]), (_Float16)((float)a[1] * (float)b[1] + (float)c[1])};
}
static inline float paper_number(_Float16 half) { return (float)half; }
static inline float paper_number(short brain) { return __uint_as_float((u32)(unsigned short)brain << 16); }
template <int M, int K, class SUMS, class INPUTS>
static SUMS paper_mfma(INPUTS a, INPUTS b, SUMS c) {
    float x[4], y[4], sums[M * M / 64];
    for (int i = 0; i < 4; ++i) x[i] = paper_number(a[i]), y[i] = paper_number(b[i]);
    memcpy(sums, &c, sizeof c);
    multiply_of_wave<M, K>(sums, x, y);
    memcpy(&c, sums, sizeof c);
    return c;
}
#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, ...) paper_mfma<16, 16>(a, b, c)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, ...) paper_mfma<16, 16>(a, b, c)
#define __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, ...) paper_mfma<32, 8>(a, b, c)
#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, ...) paper_mfma<32, 8>(a, b, c)
template <int M, int K, class SUMS>
static SUMS paper_mfma_of_bytes(int a, int b, SUMS c) {  // whole numbers far below 2^24
    float x[4], y[4], sums[M * M / 64];
    for (int i = 0; i < 4; ++i) x[i] = (signed char)(a >> 8 * i), y[i] = (signed char)(b >> 8 * i);
    for (int i = 0; i < M * M / 64; ++i) sums[i] = (float)c[i];
    multiply_of_wave<M, K>(sums, x, y);
    for (int i = 0; i < M * M / 64; ++i) c[i] = (int)sums[i];
    return c;
}
#define __builtin_amdgcn_mfma_i32_16x16x16i8(a, b, c, ...) paper_mfma_of_bytes<16, 16>(a, b, c)
#define __builtin_amdgcn_mfma_i32_32x32x8i8(a, b, c, ...) paper_mfma_of_bytes<32, 8>(a, b, c)
// Those of CDNA 3 and 4, whose operands are a string of bits: COUNT elements of BITS each. Kernels give all elements of an
// operand one value, so it does not matter which lane has which.
template <int COUNT>
static void paper_elements(const void* from, float* to, int bits, int mantissa, int bias) {
    u8 bytes[36] = {};
    memcpy(bytes, from, COUNT * bits / 8);
    for (int i = 0; i < COUNT; ++i) {
        u32 code;
        memcpy(&code, bytes + i * bits / 8, 4);
        code = code >> i * bits % 8 & ((1u << bits) - 1);
        const u32 fraction = code & ((1u << mantissa) - 1), exponent = (code & ((1u << (bits - 1)) - 1)) >> mantissa;
        const float size = (fraction + (exponent ? 1u << mantissa : 0)) * exp2f((exponent ? (int)exponent : 1) - bias - mantissa);
        to[i] = !mantissa ? (signed char)code : code >> (bits - 1) ? -size : size;
    }
}
template <int M, int K, class SUMS, class INPUTS>
static SUMS paper_wide(INPUTS a, INPUTS b, SUMS c, int bits, int mantissa, int bias) {
    float x[M * K / 64], y[M * K / 64], sums[M * M / 64];
    paper_elements<M * K / 64>(&a, x, bits, mantissa, bias);
    paper_elements<M * K / 64>(&b, y, bits, mantissa, bias);
    for (int i = 0; i < M * M / 64; ++i) sums[i] = (float)c[i];
    multiply_of_wave<M, K>(sums, x, y);
    for (int i = 0; i < M * M / 64; ++i) c[i] = sums[i];
    return c;
}
template <int M, int K, class SUMS, class INPUTS>
static SUMS paper_f8f6f4(INPUTS a, INPUTS b, SUMS c, int of_a, int of_b, int, int scale_a, int, int scale_b) {
    static const int bits[] = {8, 8, 6, 6, 4}, mantissa[] = {3, 2, 3, 2, 1}, bias[] = {7, 15, 1, 3, 1};
    if (of_a != of_b || scale_a || scale_b) __builtin_trap();
    return paper_wide<M, K>(a, b, c, bits[of_a], mantissa[of_a], bias[of_a]);
}
#define __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, ...) paper_wide<16, 32>(a, b, c, 8, 0, 0)
#define __builtin_amdgcn_mfma_i32_32x32x16_i8(a, b, c, ...) paper_wide<32, 16>(a, b, c, 8, 0, 0)
#define __builtin_amdgcn_mfma_i32_16x16x64_i8(a, b, c, ...) paper_wide<16, 64>(a, b, c, 8, 0, 0)
#define __builtin_amdgcn_mfma_i32_32x32x32_i8(a, b, c, ...) paper_wide<32, 32>(a, b, c, 8, 0, 0)
#define __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, ...) paper_wide<16, 32>(a, b, c, 8, 3, PAPER_BIAS)
#define __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(a, b, c, ...) paper_wide<32, 16>(a, b, c, 8, 3, PAPER_BIAS)
#define __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, ...) paper_wide<16, 32>(a, b, c, 16, 10, 15)
#define __builtin_amdgcn_mfma_f32_32x32x16_f16(a, b, c, ...) paper_wide<32, 16>(a, b, c, 16, 10, 15)
#define __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(...) paper_f8f6f4<16, 128>(__VA_ARGS__)
#define __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(...) paper_f8f6f4<32, 64>(__VA_ARGS__)
template <class SUMS>
static SUMS __builtin_amdgcn_mfma_f64_16x16x4f64(double a, double b, SUMS c, int, int, int) {
    double sums[4];
    memcpy(sums, &c, sizeof sums);
    multiply_of_wave<16, 4>(sums, &a, &b);
    memcpy(&c, sums, sizeof sums);
    return c;
}
