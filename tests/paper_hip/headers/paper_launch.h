// How rtc.cpp launches a kernel of a module: with a copy of its arguments, taken apart when it runs.
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
template <class... A>
static void launch(void (*kernel)(A...), void* packed, const u32* across, const u32* block_size, u32) {
    Packed<A...>::kernel = kernel;
    Packed<A...>::arguments = (std::tuple<A...>*)packed;
    body = Packed<A...>::call;
    run_blocks({across[0], across[1], across[2]}, {block_size[0], block_size[1], block_size[2]});
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
    const T before = *place;
    if (before == expected) *place = wanted;
    return before;
}
template <class T> static T atomicMax(T* place, T other) { const T before = *place; *place = std::max(before, other); return before; }
template <class T> static T atomicMin(T* place, T other) { const T before = *place; *place = std::min(before, other); return before; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline int __popc(u32 word) { return __builtin_popcount(word); }
static inline int __clz(int word) { return word ? __builtin_clz((u32)word) : 32; }
static inline int __popcll(u64 word) { return __builtin_popcountll(word); }
static inline int __clzll(long long word) { return word ? __builtin_clzll((u64)word) : 64; }
static inline int __ffs(int word) { return __builtin_ffs(word); }

// Clocks that follow the time: cycles at 1.7 GHz.
#include <time.h>
static inline u64 paper_nanoseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static inline long long clock64() { return (long long)(paper_nanoseconds() * 1.7); }
static inline long long wall_clock64() { return (long long)(paper_nanoseconds() / 10); }
#define gb_clock() ((u64)clock64())
#define gb_nanoseconds() paper_nanoseconds()

// The rest of the prelude.
template <class WORD> static WORD gb_vreg(WORD word) { return word; }
static inline u64 gb_load(u64 address) { return *(const volatile u64*)address; }
static inline u64 gb_add(u64 address, u64 value) { return __atomic_fetch_add((u64*)address, value, __ATOMIC_SEQ_CST); }
static inline u32 gb_unit() { return blockIdx.x % 4; }
static inline void gb_pause() {
    if (grid::workers.size() > 1) swapcontext(&grid::worker->context, &grid::scheduler);
}
static inline u64 gb_block_xor(u64 mine) {
    __shared__ u64 warps[32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) mine ^= gb_shuffle_xor(mine, mask);
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (u32 warp = 1; warp < blockDim.x / warpSize; ++warp) mine ^= warps[warp];
    return mine;
}

template <class T> static T atomicAdd_system(T* place, T more) { return atomicAdd(place, more); }
struct ulonglong2 { u64 x, y; };
static inline ulonglong2 make_ulonglong2(u64 x, u64 y) { return {x, y}; }
struct float2 { float x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
