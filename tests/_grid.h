// A grid on the host processor, for tests: blocks run one after another, the threads of a block one after another too, until
// one waits at a barrier or warp instruction: another coroutine takes the next threads then. It stands in place of
// suites/prelude.cuh. Grids of different threads of the host do not meet.
#include <math.h>
#include <string.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <memory>
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
#define __constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define warpSize WARP
struct float4 { float x, y, z, w; };
struct uint4 { u32 x, y, z, w; };
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
struct uint2 { u32 x, y; };
struct float2 { float x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
struct Index { u32 x, y, z; };
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

namespace grid {
constexpr size_t STACK = 1 << 17;  // bytes of a coroutine
// What a coroutine goes on with. On x86-64 it is the stack, with the registers that a call keeps on it: `swapcontext` calls
// the kernel for the mask of signals each time, which takes a hundred times as long.
#ifdef __x86_64__
struct Context { void* stack; };
__attribute__((naked, noipa)) static void switch_to(Context*, const Context*) {
    asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n movq %rsp, (%rdi)\n"
        "movq (%rsi), %rsp\n popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
}
static void prepare(Context& fresh, char* stack, void (*entry)()) {
    void** const top = (void**)((size_t)(stack + STACK) & ~(size_t)15);
    top[-1] = nullptr;  // nobody returns from `entry`
    top[-2] = (void*)entry;
    memset(top - 8, 0, 6 * sizeof *top);
    fresh.stack = top - 8;
}
#else
typedef ucontext_t Context;
static void switch_to(Context* from, const Context* to) { swapcontext(from, to); }
static void prepare(Context& fresh, char* stack, void (*entry)()) {
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = stack;
    fresh.uc_stack.ss_size = STACK;
    makecontext(&fresh, entry, 0);
}
#endif

struct Meeting { u32 arrived, turn; };
// A coroutine that runs threads of the block, one to its end and then the next that nobody has begun. It waits for a
// meeting to be over whose turn is `turn`, if it waits for any.
struct Worker {
    Context context;
    std::unique_ptr<char[]> stack;  // not touched before it is used
    u32 thread;
    Index place;  // of the thread in the block
    bool done;
    const Meeting* meeting;
    u32 turn;
};
struct Slot { u32 words[8]; };
static thread_local std::vector<Worker*> workers;
static thread_local std::vector<Meeting> warps;
static thread_local std::vector<Slot> slots[2];
static thread_local Meeting block;
static thread_local Context scheduler;
static thread_local Worker* worker;  // that is running
static thread_local u32 running, begun, size;
static thread_local void (*body)();

static void enter(const Worker& worker) {
    running = worker.thread;
    threadIdx = worker.place;
}
static void begin_next(Worker& worker) {
    const u32 thread = worker.thread = begun++;
    worker.place = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
    enter(worker);
}
// Lets the other threads of the block go on.
static void let_others() { switch_to(&worker->context, &scheduler); }
// Waits for all members; the last one does `work` before anybody goes on.
template <class WORK>
static void meet(Meeting& meeting, u32 members, WORK work) {
    const u32 turn = meeting.turn;
    if (++meeting.arrived == members) {
        work();
        meeting = {0, turn + 1};
        return;
    }
    worker->meeting = &meeting;
    worker->turn = turn;
    let_others();
}
static void meet(Meeting& meeting, u32 members) { meet(meeting, members, [] {}); }
static void main_of_worker() {
    for (;;) {
        body();
        if (begun == size) break;
        begin_next(*worker);
    }
    worker->done = true;
    let_others();
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
    fresh.meeting = nullptr;
    begin_next(fresh);
    prepare(fresh.context, fresh.stack.get(), main_of_worker);
}
static void run_block() {
    begun = 0;
    for (u32 at_work = 0, left = 1; left > 0 || begun < size;) {
        left = 0;
        for (u32 i = 0; i < at_work; ++i) {
            worker = workers[i];
            if (worker->done) continue;
            ++left;
            if (worker->meeting && worker->meeting->turn == worker->turn) continue;
            worker->meeting = nullptr;
            enter(*worker);
            switch_to(&scheduler, &worker->context);
            left -= worker->done;
        }
        while (begun < size) {  // all that were begun wait, or have ended
            if (at_work == workers.size()) workers.push_back(new Worker{{}, std::unique_ptr<char[]>(new char[STACK])});
            worker = workers[at_work++];
            start(*worker);
            switch_to(&scheduler, &worker->context);
            left += !worker->done;
        }
    }
}
static void make_ready(Index grid_size, Index block_size) {
    gridDim = grid_size;
    blockDim = block_size;
    size = block_size.x * block_size.y * block_size.z;
    warps.assign((size + WARP - 1) / WARP, Meeting{0, 0});
    slots[0].assign(size, Slot());
    slots[1].assign(size, Slot());
    block = {0, 0};
}
// Blocks run in any order: in every second launch from the last one back.
static thread_local bool is_backwards = true;
static void run_blocks(Index grid_size, Index block_size) {
    make_ready(grid_size, block_size);
    is_backwards = !is_backwards;
    for (blockIdx.z = 0; blockIdx.z < grid_size.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid_size.y; ++blockIdx.y)
            for (u32 i = 0; i < grid_size.x; ++i) blockIdx.x = is_backwards ? grid_size.x - 1 - i : i, run_block();
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
static inline void __syncwarp() { grid::exchange(grid::Slot()); }
template <class T> static T gb_word(const T* from) { return *from; }
template <class T> static T gb_load_l2(const T* from) { return *from; }
// Blocks may run side by side on several threads of the host (paper_hip/), so that what is atomic on a GPU is so here.
template <class T, class CHANGE>
static T atomically(T* place, CHANGE changed) {
    T before, after;
    __atomic_load(place, &before, __ATOMIC_SEQ_CST);
    do after = changed(before);
    while (!__atomic_compare_exchange(place, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
}
template <class T> static T atomicAdd(T* place, T more) { return atomically(place, [=](T old) { return (T)(old + more); }); }
template <class T> static T atomicMax(T* place, T other) { return atomically(place, [=](T old) { return old < other ? other : old; }); }
static inline float __uint_as_float(u32 bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline u32 __float_as_uint(float value) { u32 bits; memcpy(&bits, &value, 4); return bits; }
// The sine's series at a quarter of a period at most: a model's weights are billions of draws, and cos takes longer than the rest.
static inline float cospif(float x) {
    const float y = (float)M_PI * (0.5f - fabsf(x - 2 * rintf(0.5f * x))), s = y * y;
    return y * (1 + s * (-1 / 6.0f + s * (1 / 120.0f + s * (-1 / 5040.0f + s * (1 / 362880.0f - s / 39916800.0f)))));
}
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
static inline u64 gb_keep_policy() { return 1; }
static inline u64 gb_pass_policy() { return 2; }
static inline uint4 gb_hinted(const uint4* from, u64) { return *from; }
static inline void gb_prefetch_l2(const void*) {}
static inline void gb_bulk_prefetch_l2(const void*, u32) {}
// Clocks that go on by the same number of ticks at each reading.
static u64 ticks;
static inline u64 gb_clock() { return ticks += 1000; }
static inline u32 gb_unit() { return blockIdx.x % 4; }
static inline u64 gb_nanoseconds() { return ticks / 2; }
static inline void gb_used(volatile u32* sink, u32 value) { *sink = value; }
static inline u64 gb_load_l2(u64 address) { return *(const u64*)address; }
static inline u64 gb_add(u64 address, u64 value) { return __atomic_fetch_add((u64*)address, value, __ATOMIC_SEQ_CST); }
static inline u32 gb_seen(const u32* flag) { return *(const volatile u32*)flag; }
static inline void gb_post(u32* flag, u32 value) { *(volatile u32*)flag = value; }
static inline u32 gb_add_and_see(u32* flag) { return __atomic_fetch_add(flag, 1, __ATOMIC_SEQ_CST); }
static inline void gb_add_one(u32* flag) { gb_add_and_see(flag); }
static inline u32 gb_arrive(u32* arrived) { return gb_add_and_see(arrived); }
// Bulk copies that are over as soon as they begin. A barrier has its arrivals in a phase, those that are left, and phases.
static inline void gb_barrier_init(u64* barrier, u32 arrivals = 1) { *barrier = arrivals | arrivals << 8; }
static inline bool gb_barrier_passed(const u64* barrier, u32 parity) { return (*barrier >> 16 & 1) != parity; }
static inline void gb_barrier_expect(u64* barrier, u32) {
    if (((*barrier -= 1 << 8) & 0xff00) == 0) *barrier += (1 << 16) + ((*barrier & 0xff) << 8);
}
static inline void gb_barrier_await(u64* barrier, u32 parity) {
    while (!gb_barrier_passed(barrier, parity)) grid::let_others();
}
static inline void gb_bulk_load(void* there, const void* from, u32 bytes, u64* barrier) {
    memcpy(there, from, bytes);
    gb_barrier_expect(barrier, bytes);
}
#define __grid_constant__
// Of boxes of `high` rows × 64 halves, swizzled; or with `wide` of boxes of high × wide words of 8 bytes, as they lie.
struct GbTensorMap { const unsigned short* matrix; u64 columns, rows, high, wide, rest[11]; };
static inline void gb_tensor_load(void* shared, const GbTensorMap* map, u32 x, u32 y, u64*) {
    for (u32 i = 0; i < map->high * map->wide; ++i) {
        const u64 row = y + i / map->wide, column = x + i % map->wide;
        const bool is_inside = row < map->rows && column < map->columns;
        ((u64*)shared)[i] = is_inside ? ((const u64*)map->matrix)[row * map->columns + column] : 0;
    }
    for (u32 i = 0; map->wide == 0 && i < 8 * map->high; ++i) {
        const u64 row = i / 8;
        u8* const to = (u8*)shared + row * 128 + (i ^ row) % 8 * 16;
        if (y + row < map->rows) memcpy(to, map->matrix + (y + row) * map->columns + x + i % 8 * 8, 16);
        else memset(to, 0, 16);
    }
}
#define __cluster_dims__(...)  // a block is alone in its cluster
#define gb_tensor_load_both gb_tensor_load
static inline u32 gb_cluster_rank() { return 0; }
static inline void gb_cluster_barrier() { __syncthreads(); }
static inline void gb_barrier_arrive(u64* barrier) { gb_barrier_expect(barrier, 0); }
static inline void gb_barrier_arrive_at(u64* barrier, u32) { gb_barrier_expect(barrier, 0); }
template <int COUNT> static void gb_fewer_registers() {}
template <int COUNT> static void gb_more_registers() {}
#define gb_products_await gb_barrier_await
static inline void gb_bulk_store(void* there, const void* from, u32 bytes) { memcpy(there, from, bytes); }
template <int PENDING> static void gb_bulk_wait_read() {}
static inline void gb_bulk_wait() {}
static inline bool gb_is_last(u32* arrived, u32 blocks) {
    static thread_local u32 before;
    __syncthreads();
    if (threadIdx.x == 0) {
        before = gb_arrive(arrived);
        if (before + 1 == blocks) *arrived = 0;
    }
    __syncthreads();
    return before + 1 == blocks;
}
static inline u64 gb_block_xor(u64 mine) {
    static thread_local u64 whole;
    if (threadIdx.x == 0) whole = 0;
    __syncthreads();
    whole ^= mine;
    __syncthreads();
    return whole;
}
#ifndef gb_vreg  // a test's own
static inline u32 gb_vreg(u32 value) { return value; }
static inline u64 gb_vreg(u64 value) { return value; }
#endif
template <class T> static T atomicAdd_system(T* place, T more) { return atomicAdd(place, more); }
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
static inline u32 gb_transpose(u32 two) {
    grid::Slot mine;
    mine.words[0] = two;
    const grid::Slot* all = grid::exchange(mine);
    const u32 row = grid::running % 32 / 4, column = 2 * (grid::running % 4), shift = 16 * (row % 2);
    const u32 low = all[4 * column + row / 2].words[0] >> shift, high = all[4 * column + 4 + row / 2].words[0] >> shift;
    return (low & 0xffffu) | high << 16;
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
static inline float e4m3_of(u32 byte) {
    const u32 exponent = byte >> 3 & 15, fraction = byte & 7;
    const float size = exponent ? ldexpf(8 + fraction, (int)exponent - 10) : ldexpf(fraction, -9);
    return (byte & 0x7f) == 0x7f ? NAN : byte & 0x80 ? -size : size;
}
static inline u32 gb_e4m3_halves(u32 two) {
    return gb_to_half(e4m3_of(two & 255)) | (u32)gb_to_half(e4m3_of(two >> 8 & 255)) << 16;
}
static inline u32 to_e4m3(float value) {  // the nearest, and of two that are equally near the even one
    u32 best = 0;
    for (u32 code = 1; code < 0x7f; ++code) {
        const float off = fabsf(e4m3_of(code) - fabsf(value)), least = fabsf(e4m3_of(best) - fabsf(value));
        if (off < least || (off == least && code % 2 == 0)) best = code;
    }
    return best | (value < 0 ? 0x80 : 0);
}
static inline u32 gb_to_e4m3(float low, float high) { return to_e4m3(low) | to_e4m3(high) << 8; }
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
// Hopper's warpgroup instructions, at once and by each warp for its 16 rows. A descriptor has a place in shared memory, whose
// begin is that of the last array of which the address was taken.
static u8* shared_begin;
static inline u32 gb_shared_address(const void* shared) {
    shared_begin = (u8*)(((size_t)shared + 1023) / 1024 * 1024);
    return (u32)(size_t)shared;
}
static inline void gb_async_fence() {}
static inline void gb_keep(u32 (&)[4]) {}
static inline void gb_begin_products() {}
static inline void gb_end_products() {}
template <int PENDING> static void gb_await_products() {}
static thread_local grid::Meeting groups[16];
static inline void gb_group_barrier(u32 number, u32 threads) { grid::meet(groups[number], threads); }
static inline void gb_group_arrive(u32 number, u32 threads) {
    if (++groups[number].arrived == threads) groups[number] = {0, groups[number].turn + 1};
}
static inline u64 gb_described(const void* shared) {
    return (u64)((u8*)shared - shared_begin) >> 4 | (u64)1 << 16 | (u64)64 << 32;
}
static inline float swizzled(u64 place) {
    float value, unused;
    gb_halves(*(const unsigned short*)(shared_begin + (place ^ place / 128 % 8 * 16)), value, unused);
    return value;
}
static inline float by_rows(u64 matrix, u32 row, u32 k) { return swizzled((matrix & 0x3fff) * 16 + row * 128 + 2 * k); }
static inline float by_columns(u64 matrix, u32 column, u32 k) {
    const u64 across = (matrix >> 16 & 0x3fff) * 16, down = (matrix >> 32 & 0x3fff) * 16;
    return swizzled((matrix & 0x3fff) * 16 + column / 64 * across + k / 8 * down + k % 8 * 128 + column % 64 * 2);
}
template <int SUMS, class LEFT, class RIGHT> static void products(float (&d)[SUMS], u32 adds, LEFT left, RIGHT right) {
    const u32 lane = grid::running % 32;
    for (u32 i = 0; i < SUMS; ++i) {
        const u32 column = i / 4 * 8 + lane % 4 * 2 + i % 2, high = i / 2 % 2;
        float sum = adds ? d[i] : 0;
        for (u32 k = 0; k < 16; ++k) sum += left(high, k) * right(column, k);
        d[i] = sum;
    }
}
static inline void gb_store_matrices(void* row, const uint4& v) {
    grid::Slot mine;
    memcpy(mine.words, &v, sizeof v);
    const grid::Slot* all = grid::exchange(mine);
    const u32 lane = grid::running % 32;
    for (u32 t = 0; t < 4; ++t) ((u32*)row)[t] = all[lane % 8 * 4 + t].words[lane / 8];
}
template <int SUMS, class RIGHT> static void of_registers(float (&d)[SUMS], const u32 (&a)[4], u32 adds, RIGHT right) {
    grid::Slot mine;
    memcpy(mine.words, a, sizeof a);
    const grid::Slot* row = grid::exchange(mine) + grid::running % 32 / 4 * 4;
    products(d, adds, [=](u32 high, u32 k) {
        float two[2];
        gb_halves(row[k % 8 / 2].words[k / 8 * 2 + high], two[0], two[1]);
        return two[k % 2];
    }, right);
}
template <int SUMS> static void gb_products(float (&d)[SUMS], const u32 (&a)[4], u64 b, u32 adds) {
    of_registers(d, a, adds, [=](u32 column, u32 k) { return by_rows(b, column, k); });
}
static inline void gb_products_turned(float (&d)[128], const u32 (&a)[4], u64 b, u32 adds) {
    of_registers(d, a, adds, [=](u32 column, u32 k) { return by_columns(b, column, k); });
}
template <int SUMS, class RIGHT> static void of_shared(float (&d)[SUMS], u64 a, u32 adds, RIGHT right) {
    const u32 row = grid::running % 128 / 32 * 16 + grid::running % 32 / 4;
    products(d, adds, [=](u32 high, u32 k) { return by_rows(a, row + 8 * high, k); }, right);
}
template <int SUMS> static void gb_products_shared(float (&d)[SUMS], u64 a, u64 b, u32 adds) {
    of_shared(d, a, adds, [=](u32 column, u32 k) { return by_rows(b, column, k); });
}
static inline void gb_products_turned(float (&d)[128], u64 a, u64 b) {
    of_shared(d, a, 1, [=](u32 column, u32 k) { return by_columns(b, column, k); });
}
static inline float gb_exp2(float x) { return exp2f(x); }
static inline u32 gb_packed(float low, float high) { return gb_to_half(low) | (u32)gb_to_half(high) << 16; }
template <bool BRAIN> static void two_of(u32 word, float (&two)[2]) {
    if (BRAIN) two[0] = __uint_as_float(word << 16), two[1] = __uint_as_float(word & 0xffff0000u);
    else gb_halves(word, two[0], two[1]);
}
#if GB_HIP
// D = A·B + C of a wave of 64 lanes, as the matrix instructions of AMD's CDNA: M × N sums of K products. Which elements
// are a lane's is as AMD's matrix instruction calculator draws it: row lane % M of a and column lane % N of b, of each
// the inner places from COUNT·(lane / M) on; of c the column lane % N and in groups of four the rows from 4·(lane / M)
// on, or, in double precision, every fourth row from lane / M on.
template <int M, int K, class NUMBER>
struct Matrices {
    static constexpr int COUNT = M * K / 64, SUMS = M * M / 64;
    NUMBER a[M][K], b[K][M], c[M][M];
    static u32 row(u32 lane, u32 i) {
        return sizeof(NUMBER) == 8 ? 4 * i + lane / M : 4 * (64 / M) * (i / 4) + 4 * (lane / M) + i % 4;
    }
    __attribute__((optimize("O3"))) void multiply() {
        for (int i = 0; i < M; ++i)
            for (int k = 0; k < K; ++k)
                for (int j = 0; j < M; ++j) c[i][j] += a[i][k] * b[k][j];
    }
};
template <int M, int K, class NUMBER>
__attribute__((optimize("O3"))) static void multiply_of_wave(NUMBER* c, const NUMBER* a, const NUMBER* b) {
    typedef Matrices<M, K, NUMBER> Shape;
    static thread_local std::vector<Shape> of_warps;
    const u32 warp = grid::running / 64, lane = grid::running % 64;
    if (of_warps.size() < grid::warps.size()) of_warps.resize(grid::warps.size());
    Shape& all = of_warps[warp];
#pragma GCC unroll 16
    for (u32 i = 0; i < Shape::COUNT; ++i) {
        const u32 k = Shape::COUNT * (lane / M) + i;
        all.a[lane % M][k] = a[i];
        all.b[k][lane % M] = b[i];
    }
#pragma GCC unroll 16
    for (u32 i = 0; i < Shape::SUMS; ++i) all.c[Shape::row(lane, i)][lane % M] = c[i];
    grid::meet(grid::warps[warp], 64, [&] { all.multiply(); });
#pragma GCC unroll 16
    for (u32 i = 0; i < Shape::SUMS; ++i) c[i] = all.c[Shape::row(lane, i)][lane % M];
}
#define GB_COLUMNS 16
#define GB_ROWS 1
static inline u32 gb_row() { return threadIdx.x % 16; }
static inline u32 gb_part() { return threadIdx.x % 64 / 16; }
static inline u32 gb_sum_row(u32 i) { return 4 * gb_part() + i; }
static inline u32 gb_sum_column(u32) { return gb_row(); }
template <bool BRAIN> static void four_of(const u32 (&words)[2], float (&four)[4]) {
    two_of<BRAIN>(words[0], (float(&)[2])four[0]);
    two_of<BRAIN>(words[1], (float(&)[2])four[2]);
}
template <bool BRAIN> static void gb_multiply(float (&c)[4], const u32 (&a)[2], const u32 (&b)[2]) {
    float x[4], y[4];
    four_of<BRAIN>(a, x);
    four_of<BRAIN>(b, y);
    multiply_of_wave<16, 16>(c, x, y);
}
#define GB_LANE_WORDS 1
static void gb_multiply_32(float (&c)[16], const u64 (&a)[1], const u64 (&b)[1]) {
    float x[4], y[4];
    four_of<false>({(u32)a[0], (u32)(a[0] >> 32)}, x);
    four_of<false>({(u32)b[0], (u32)(b[0] >> 32)}, y);
    multiply_of_wave<32, 8>(c, x, y);
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
