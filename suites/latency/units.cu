// Latency by compute unit: of each line of the last-level cache from each unit, and of memory while other units stream.
// Every wait is bounded by `limit` cycles. The data are the known words of a seed: word i is gb_random(seed, i), so that
// loaded values can be checked without the data.

// Reports the compute unit on which each block runs.
extern "C" __global__ void census(u32* units, u64 limit) {
    u64 start = gb_clock();
    if (threadIdx.x == 0) units[blockIdx.x] = gb_unit();
    while (gb_clock() - start < limit) gb_pause();  // otherwise the next block would find this one's unit free
}

// Only one compute unit loads lines, bypassing the first-level cache; the blocks of the others wait a little and leave.
// took[i] is the shortest of `repeats` accesses to line i, including two readings of the clock; the first access to a
// line is not counted. state[0] combines the loaded values, state[1] and state[2] are the cycles and nanoseconds of the
// whole kernel, state[3] the cycles of the two readings alone.
#define SLICES(name, access)                                                                                   \
    extern "C" __global__ void name(u64* data, const u32* lines, u32 count, u32 repeats, u32 unit, u64 limit,  \
                                    u32* took, u64* state) {                                                   \
        volatile __shared__ u32 sink[1];                                                                       \
        u64 start = gb_clock();                                                                                \
        if (gb_unit() != unit) {                                                                               \
            while (gb_clock() - start < limit) gb_pause();                                                     \
            return;                                                                                            \
        }                                                                                                      \
        if (threadIdx.x != 0) return;                                                                          \
        u64 since = gb_nanoseconds(), gathered = 0;                                                            \
        u64 nothing = gb_vreg((u64)0); /* adding a known zero would be compiled to a load */                   \
        u32 pair = ~0u;                                                                                        \
        for (u32 i = 0; i < count; ++i) {                                                                      \
            u64 address = gb_vreg((u64)(data + (u64)lines[i] * 16)), value = 0;                                \
            u32 least = ~0u;                                                                                   \
            for (u32 repeat = 0; repeat <= repeats; ++repeat) {                                                \
                u64 before = gb_clock();                                                                       \
                value = access;                                                                                \
                gb_used(sink, (u32)value);                                                                     \
                u32 cycles = (u32)(gb_clock() - before);                                                       \
                if (repeat != 0 && cycles < least) least = cycles;                                             \
            }                                                                                                  \
            gathered += value;                                                                                 \
            took[i] = least;                                                                                   \
        }                                                                                                      \
        for (u32 i = 0; i < 16; ++i) {                                                                         \
            u64 before = gb_clock();                                                                           \
            gb_used(sink, (u32)gathered + i);                                                                  \
            u32 cycles = (u32)(gb_clock() - before);                                                           \
            if (cycles < pair) pair = cycles;                                                                  \
        }                                                                                                      \
        state[0] = gathered;                                                                                   \
        state[1] = gb_clock() - start;                                                                         \
        state[2] = gb_nanoseconds() - since;                                                                   \
        state[3] = pair;                                                                                       \
    }
SLICES(slices_load, gb_load_l2(address))
SLICES(slices_atomic, gb_add(address, nothing))

// Block 0 walks a ring with one lane, while the other blocks read `data`, a power of two of `vectors`, as fast as they
// can, each alone on its compute unit. flag[0] counts the blocks that have started, flag[1] ends them, and flag[2] is
// set if a wait gave up. Each streaming thread records how often it went through its data, and when it began and ended
// in nanoseconds.
const u32 VECTORS = 8;      // 16-byte loads in flight per lane
const u32 ROUNDS = 4;       // such loads between two readings of the flag
const u32 WIDTH = 1024;     // threads per block

static __device__ __forceinline__ u64 vector_of(u64 turn, u32 round, u32 vector, u64 warps, u64 vectors) {
    u64 warp = ((u64)blockIdx.x - 1) * (WIDTH / 32) + threadIdx.x / 32;
    u64 place = (turn * ROUNDS + round) * warps + warp;
    return ((place * VECTORS + vector) * 32 & (vectors - 1)) + threadIdx.x % 32;
}

extern "C" __global__ void __launch_bounds__(1024) loaded(const u8* ring, u64 steps, u64* state, const ulonglong2* data,
                                                          u64 vectors, u64 limit, u32* flag, u64* turns, u64* found) {
    u64 start = gb_clock();
    volatile u32* signal = flag;
    if (blockIdx.x == 0) {
        if (threadIdx.x != 0) return;
        while (signal[0] < gridDim.x - 1) {
            if (gb_clock() - start > limit) { signal[2] = 1; break; }
        }
        u64 here = gb_vreg((u64)ring + state[0]), since = gb_nanoseconds();
        start = gb_clock();
#pragma unroll 16
        for (u64 i = 0; i < steps; ++i) here = gb_load(here);
        here = gb_vreg(here);
        state[1] = gb_clock() - start;
        state[4] = gb_nanoseconds() - since;
        state[0] = here - (u64)ring;
        signal[1] = 1;
        return;
    }
    u64 warps = ((u64)gridDim.x - 1) * (WIDTH / 32), turn = 0, x = 0, since = gb_nanoseconds();
    if (threadIdx.x == 0) atomicAdd(flag, 1u);
    while (signal[1] == 0) {
        for (u32 round = 0; round < ROUNDS; ++round) {
            ulonglong2 v[VECTORS];
#pragma unroll
            for (u32 i = 0; i < VECTORS; ++i) v[i] = data[vector_of(turn, round, i, warps, vectors)];
#pragma unroll
            for (u32 i = 0; i < VECTORS; ++i) x ^= v[i].x ^ v[i].y;
        }
        ++turn;
        if (gb_clock() - start > limit) { signal[2] = 1; break; }
    }
    u64 thread = ((u64)blockIdx.x - 1) * WIDTH + threadIdx.x;
    found[thread] = x;
    turns[3 * thread] = turn;
    turns[3 * thread + 1] = since;
    turns[3 * thread + 2] = gb_nanoseconds();
}

// Computes the value that `loaded` should have found, from freshly drawn data at the same places. Launched with the
// same grid.
extern "C" __global__ void __launch_bounds__(1024) expected(u64 seed, u64 vectors, const u64* turns, u64* found) {
    if (blockIdx.x == 0) return;
    u64 warps = ((u64)gridDim.x - 1) * (WIDTH / 32), thread = ((u64)blockIdx.x - 1) * WIDTH + threadIdx.x, x = 0;
    for (u64 turn = 0; turn < turns[3 * thread]; ++turn) {
        for (u32 round = 0; round < ROUNDS; ++round) {
            for (u32 i = 0; i < VECTORS; ++i) {
                u64 word = 2 * vector_of(turn, round, i, warps, vectors);
                x ^= gb_random(seed, word) ^ gb_random(seed, word + 1);
            }
        }
    }
    found[thread] = x;
}
