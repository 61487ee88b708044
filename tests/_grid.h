// A grid on the host processor, for tests: blocks run one after another, the threads of a block one after another too, until
// one waits at a barrier or warp instruction: another coroutine takes the next threads then. It stands in place of
// suites/prelude.cuh. Grids of different threads of the host do not meet.
#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <tuple>
#include <utility>
#include <vector>

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
// WARP is 32, or 64 for kernels as AMD's instructions would have them.
#ifndef WARP
#define WARP 32
#endif
#define GB_HIP (WARP == 64)
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))
#define warpSize WARP
struct float4 { float x, y, z, w; };
struct uint4 { u32 x, y, z, w; };
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
struct uint2 { u32 x, y; };
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
struct Index { u32 x, y, z; };
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

namespace grid {
// A coroutine that runs threads of the block, one to its end and then the next that nobody has begun.
struct Worker { ucontext_t context; std::vector<char> stack; u32 thread; bool done; };
struct Meeting { u32 arrived, turn; };
struct Slot { u32 words[8]; };
static thread_local std::vector<Worker*> workers;
static thread_local std::vector<Meeting> warps;
static thread_local std::vector<Slot> slots[2];
static thread_local Meeting block;
static thread_local ucontext_t scheduler;
static thread_local Worker* worker;  // that is running
static thread_local u32 running, begun, size;
static thread_local void (*body)();

static void enter(u32 thread) {
    running = thread;
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}
static void meet(Meeting& meeting, u32 members) {
    const u32 turn = meeting.turn;
    if (++meeting.arrived == members) meeting = {0, turn + 1};
    while (meeting.turn == turn) swapcontext(&worker->context, &scheduler);
}
static void main_of_worker() {
    for (;;) {
        body();
        if (begun == size) break;
        enter(worker->thread = begun++);
    }
    worker->done = true;
    swapcontext(&worker->context, &scheduler);
}
// Every lane of the warp hands in a slot; the pointer is to all of them, until the next exchange but one.
static const Slot* exchange(const Slot& mine) {
    Meeting& warp = warps[running / WARP];
    std::vector<Slot>& here = slots[warp.turn % 2];
    here[running] = mine;
    const u32 first = running / WARP * WARP;
    meet(warp, WARP);
    return &here[first];
}
static void start(Worker& fresh) {
    fresh.done = false;
    fresh.thread = begun++;
    getcontext(&fresh.context);
    fresh.context.uc_stack.ss_sp = fresh.stack.data();
    fresh.context.uc_stack.ss_size = fresh.stack.size();
    makecontext(&fresh.context, main_of_worker, 0);
}
static void run_block() {
    begun = 0;
    for (u32 at_work = 0, left = 1; left > 0 || begun < size;) {
        left = 0;
        for (u32 i = 0; i < at_work; ++i) {
            worker = workers[i];
            if (worker->done) continue;
            enter(worker->thread);
            swapcontext(&scheduler, &worker->context);
            left += !worker->done;
        }
        while (begun < size) {  // all that were begun wait, or have ended
            if (at_work == workers.size()) workers.push_back(new Worker{{}, std::vector<char>(1 << 17), 0, true});
            worker = workers[at_work++];
            start(*worker);
            enter(worker->thread);
            swapcontext(&scheduler, &worker->context);
            left += !worker->done;
        }
    }
}
static void run_blocks(Index grid_size, Index block_size) {
    gridDim = grid_size;
    blockDim = block_size;
    size = block_size.x * block_size.y * block_size.z;
    warps.assign((size + WARP - 1) / WARP, Meeting{0, 0});
    slots[0].assign(size, Slot());
    slots[1].assign(size, Slot());
    block = {0, 0};
    for (blockIdx.z = 0; blockIdx.z < grid_size.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid_size.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid_size.x; ++blockIdx.x) run_block();
}
template <class... A>
struct Launch {
    static inline thread_local void (*kernel)(A...);
    static inline thread_local void** arguments;
    template <size_t... I>
    static void apply(std::index_sequence<I...>) { kernel(*(A*)arguments[I]...); }
    static void call() { apply(std::index_sequence_for<A...>()); }
};
template <class... A>
static void run(void (*kernel)(A...), u32 across, u32 down, u32 threads, void** arguments) {
    Launch<A...>::kernel = kernel;
    Launch<A...>::arguments = arguments;
    body = Launch<A...>::call;
    run_blocks({across, down, 1}, {threads, 1, 1});
}
}  // namespace grid

static inline void __syncthreads() { grid::meet(grid::block, grid::size); }
static inline void __threadfence() {}
template <class T> static T gb_word(const T* from) { return *from; }
template <class T> static T gb_load_l2(const T* from) { return *from; }
template <class T> static T atomicAdd(T* place, T more) { const T before = *place; *place += more; return before; }
static inline float __uint_as_float(u32 bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline u32 __float_as_uint(float value) { u32 bits; memcpy(&bits, &value, 4); return bits; }
static inline float cospif(float x) { return (float)cos(M_PI * x); }
static inline double cospi(double x) { return cos(M_PI * x); }

static inline u64 gb_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static inline u64 gb_threads() { return (u64)gridDim.x * blockDim.x; }
static inline u64 gb_random(u64 seed, u64 i) {
    u64 x = seed + i * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
static inline uint4 gb_stream(const uint4* from) { return *from; }
static inline uint4 gb_fetch(const uint4* from) { return *from; }
// Clocks that go on by the same number of ticks at each reading.
static u64 ticks;
static inline u64 gb_clock() { return ticks += 1000; }
static inline u64 gb_nanoseconds() { return ticks / 2; }
static inline void gb_used(volatile u32* sink, u32 value) { *sink = value; }
static inline u64 gb_load_l2(u64 address) { return *(const u64*)address; }
static inline u32 gb_seen(const u32* flag) { return *(const volatile u32*)flag; }
static inline void gb_post(u32* flag, u32 value) { *(volatile u32*)flag = value; }
static inline u32 gb_add_and_see(u32* flag) { return __atomic_fetch_add(flag, 1, __ATOMIC_SEQ_CST); }
static inline void gb_add_one(u32* flag) { gb_add_and_see(flag); }
static inline u32 gb_arrive(u32* arrived) { return gb_add_and_see(arrived); }
// Bulk copies that are over as soon as they begin: a barrier counts its loads.
static inline void gb_barrier_init(u64* barrier) { *barrier = 0; }
static inline bool gb_barrier_passed(const u64* barrier, u32 parity) { return (*barrier & 1) != parity; }
static inline void gb_bulk_load(void* there, const void* from, u32 bytes, u64* barrier) {
    memcpy(there, from, bytes);
    ++*barrier;
}
static inline void gb_bulk_store(void* there, const void* from, u32 bytes) { memcpy(there, from, bytes); }
template <int PENDING> static void gb_bulk_wait_read() {}
static inline void gb_bulk_wait() {}
static inline bool gb_is_last(u32* arrived, u32 blocks) {
    static u32 before;
    __syncthreads();
    if (threadIdx.x == 0) {
        before = (*arrived)++;
        if (before + 1 == blocks) *arrived = 0;
    }
    __syncthreads();
    return before + 1 == blocks;
}
static inline void gb_allow_next() {}
static inline void gb_wait_for_previous() {}
static inline void gb_async_load(uint4* there, const uint4* from) { *there = *from; }
static inline void gb_async_commit() {}
template <int PENDING> static void gb_async_wait() {}
template <class A> static A gb_shuffle_xor(A value, int mask) {
    grid::Slot mine;
    memcpy(mine.words, &value, sizeof value);
    memcpy(&value, grid::exchange(mine)[grid::running % WARP ^ mask].words, sizeof value);
    return value;
}
template <class A> static A gb_shuffle(A value, int lane) {
    grid::Slot mine;
    memcpy(mine.words, &value, sizeof value);
    memcpy(&value, grid::exchange(mine)[lane % WARP].words, sizeof value);
    return value;
}
static inline void gb_matrices(u32 (&found)[4], const void* row) {
    grid::Slot mine;
    memcpy(mine.words, &row, sizeof row);
    const grid::Slot* all = grid::exchange(mine);
    const u32 lane = grid::running % 32;
    for (u32 i = 0; i < 4; ++i) {
        const u32* words;
        memcpy(&words, all[8 * i + lane / 4].words, sizeof words);
        found[i] = words[lane % 4];
    }
}
static inline float gb_gated(float gate, float up) { return gate / (1 + expf(-gate)) * up; }
static inline void gb_halves(u32 word, float& low, float& high) {
    _Float16 halves[2];
    memcpy(halves, &word, 4);
    low = (float)halves[0];
    high = (float)halves[1];
}
static inline unsigned short gb_to_half(float value) {
    const _Float16 half = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &half, 2);
    return bits;
}
static inline u32 gb_half2_minus(u32 a, u32 b) {
    float x[2], y[2];
    gb_halves(a, x[0], x[1]);
    gb_halves(b, y[0], y[1]);
    return gb_to_half(x[0] - y[0]) | (u32)gb_to_half(x[1] - y[1]) << 16;
}
static inline u32 gb_half2_fma(u32 a, u32 b, u32 c) {
    float x[2], y[2], z[2];
    gb_halves(a, x[0], x[1]);
    gb_halves(b, y[0], y[1]);
    gb_halves(c, z[0], z[1]);
    return gb_to_half(x[0] * y[0] + z[0]) | (u32)gb_to_half(x[1] * y[1] + z[1]) << 16;
}
static inline u32 gb_bytes(u32 a, u32 b, u32 choice) {
    const u64 both = a | (u64)b << 32;
    u32 chosen = 0;
    for (int i = 0; i < 4; ++i) chosen |= (u32)(both >> (8 * (choice >> (4 * i) & 7)) & 255) << (8 * i);
    return chosen;
}
template <bool BRAIN> static void two_of(u32 word, float (&two)[2]) {
    if (BRAIN) two[0] = __uint_as_float(word << 16), two[1] = __uint_as_float(word & 0xffff0000u);
    else gb_halves(word, two[0], two[1]);
}
#if GB_HIP
// The fragments of v_mfma_f32_16x16x16 as AMD's matrix instruction calculator draws them: of lane l the row l % 16 of a
// and column l % 16 of b, inner places 4·(l / 16) to 4·(l / 16) + 3; of c the rows 4·(l / 16) + i, column l % 16.
#define GB_COLUMNS 16
#define GB_ROWS 1
static inline u32 gb_row() { return threadIdx.x % 16; }
static inline u32 gb_part() { return threadIdx.x % 64 / 16; }
static inline u32 gb_sum_row(u32 i) { return 4 * gb_part() + i; }
static inline u32 gb_sum_column(u32) { return gb_row(); }
template <bool BRAIN> static void gb_multiply(float (&c)[4], const u32 (&a)[2], const u32 (&b)[2]) {
    grid::Slot mine;
    memcpy(mine.words, a, 8);
    memcpy(mine.words + 2, b, 8);
    const grid::Slot* all = grid::exchange(mine);
    const u32 lane = grid::running % 64;
    for (u32 i = 0; i < 4; ++i) {
        const u32 row = 4 * (lane / 16) + i, column = lane % 16;
        double sum = c[i];
        for (u32 k = 0; k < 8; ++k) {
            float x[2], y[2];
            two_of<BRAIN>(all[row + 16 * (k / 2)].words[k % 2], x);
            two_of<BRAIN>(all[column + 16 * (k / 2)].words[2 + k % 2], y);
            sum += (double)x[0] * y[0] + (double)x[1] * y[1];
        }
        c[i] = (float)sum;
    }
}
// The fragments of v_mfma_f32_32x32x8_f16, from the same calculator.
static void gb_multiply_32(float (&c)[16], u64 a, u64 b) {
    grid::Slot mine;
    memcpy(mine.words, &a, 8);
    memcpy(mine.words + 2, &b, 8);
    const grid::Slot* all = grid::exchange(mine);
    const u32 lane = grid::running % 64;
    for (u32 i = 0; i < 16; ++i) {
        const u32 row = 8 * (i / 4) + 4 * (lane / 32) + i % 4, column = lane % 32;
        double sum = c[i];
        for (u32 k = 0; k < 4; ++k) {
            float x[2], y[2];
            gb_halves(all[row + 32 * (k / 2)].words[k % 2], x[0], x[1]);
            gb_halves(all[column + 32 * (k / 2)].words[2 + k % 2], y[0], y[1]);
            sum += (double)x[0] * y[0] + (double)x[1] * y[1];
        }
        c[i] = (float)sum;
    }
}
#else
#define GB_COLUMNS 8
#define GB_ROWS 2
static inline u32 gb_row() { return threadIdx.x % 32 / 4; }
static inline u32 gb_part() { return threadIdx.x % 4; }
static inline u32 gb_sum_row(u32 i) { return gb_row() + 8 * (i / 2); }
static inline u32 gb_sum_column(u32 i) { return 2 * gb_part() + i % 2; }
// The fragments of mma.m16n8k16 as the PTX ISA draws them: lane 4·g + t has rows g and g + 8 of a,
// column g of b, and of both the inner places 2·t, 2·t + 1, 2·t + 8 and 2·t + 9.
template <bool BRAIN> static void gb_multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    grid::Slot mine;
    memcpy(mine.words, a, 16);
    memcpy(mine.words + 4, b, 8);
    const grid::Slot* all = grid::exchange(mine);
    const u32 lane = grid::running % 32, g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; ++i) {
        const u32 row = g + 8 * (i / 2), column = 2 * t + i % 2;
        double sum = c[i];
        for (u32 k = 0; k < 8; ++k) {
            float x[2], y[2];
            two_of<BRAIN>(all[4 * (row % 8) + k % 4].words[row / 8 + 2 * (k / 4)], x);
            two_of<BRAIN>(all[4 * column + k % 4].words[4 + k / 4], y);
            sum += (double)x[0] * y[0] + (double)x[1] * y[1];
        }
        c[i] = (float)sum;
    }
}
#endif
