// Flags between processes and GPUs. Every wait is bounded by `limit` cycles of the device clock.

// Returns whether the flag reaches the value, or a later one, within `limit` cycles.
static __device__ __forceinline__ bool reaches(const u32* flag, u32 value, u64 limit) {
    const u64 begin = gb_clock();
    while ((int)(gb_seen(flag) - value) < 0)
        if (gb_clock() - begin > limit) return false;
    return true;
}

// Signals the other side by a store, or with ADDS by an addition. Both leave the same value, since each addition adds
// one.
#ifndef ADDS
#define ADDS 0
#endif
static __device__ __forceinline__ void tell(u32* flag, u32 value) {
    if (ADDS) gb_add_one(flag);
    else gb_post(flag, value);
}

// One thread makes `rounds` round trips between two devices. Each side polls `mine` and writes to `theirs`. `ticks` has
// the cycles of each round, state[0] the cycles of all; state[1] is the round in which it gave up, counted from 1.
extern "C" __global__ void ping_pong(u32* mine, u32* theirs, u32 serves, u32 from, u32 rounds, u64 limit, u32* ticks,
                                     u64* state) {
    const u64 first = gb_clock();
    u64 last = first;
    for (u32 round = 1; round <= rounds; round++) {
        if (serves) tell(theirs, from + round);
        if (!reaches(mine, from + round, limit)) {
            state[1] = round;
            return;
        }
        if (!serves) tell(theirs, from + round);
        const u64 now = gb_clock();
        ticks[round - 1] = (u32)(now - last);
        last = now;
    }
    state[0] = last - first;
}

// `rounds` barriers by one block of `world` threads on each device. Slot p of `mine` is written by rank p; theirs[p] is
// the address of rank p's flags.
extern "C" __global__ void all_meet(u32* mine, const u64* theirs, u32 rank, u32 from, u32 rounds, u64 limit, u32* ticks,
                                    u64* state) {
    __shared__ u32 late;
    const u32 other = threadIdx.x;
    if (other == 0) late = 0;
    __syncthreads();
    const u64 first = gb_clock();
    u64 last = first;
    for (u32 round = 1; round <= rounds; round++) {
        if (other != rank) {
            gb_post((u32*)theirs[other] + rank, from + round);
            if (!reaches(mine + other, from + round, limit)) late = 1;
        }
        __syncthreads();
        if (late) {
            if (other == 0) state[1] = round;
            return;
        }
        const u64 now = gb_clock();
        if (other == 0) ticks[round - 1] = (u32)(now - last);
        last = now;
    }
    if (other == 0) state[0] = last - first;
}

// The same barriers by one counter in the first rank's memory: each rank adds one, and polls until all have.
extern "C" __global__ void all_count(u32* counter, u32 world, u32 from, u32 rounds, u64 limit, u32* ticks, u64* state) {
    const u64 first = gb_clock();
    u64 last = first;
    for (u32 round = 1; round <= rounds; round++) {
        gb_add_one(counter);
        if (!reaches(counter, from + round * world, limit)) {
            state[1] = round;
            return;
        }
        const u64 now = gb_clock();
        ticks[round - 1] = (u32)(now - last);
        last = now;
    }
    state[0] = last - first;
}

// `rounds` barriers within a block.
extern "C" __global__ void block_meets(u32 rounds, u32* ticks, u64* state) {
    const u64 first = gb_clock();
    u64 last = first;
    for (u32 round = 0; round < rounds; round++) {
        __syncthreads();
        const u64 now = gb_clock();
        if (threadIdx.x == 0) ticks[round] = (u32)(now - last);
        last = now;
    }
    if (threadIdx.x == 0) state[0] = last - first;
}

// `rounds` barriers of all blocks by a counter in device memory; every block must be resident at once.
extern "C" __global__ void grid_meets(u32* counter, u32 rounds, u64 limit, u32* ticks, u64* state) {
    __shared__ u32 late;
    if (threadIdx.x == 0) late = 0;
    __syncthreads();
    const u64 first = gb_clock();
    u64 last = first;
    for (u32 round = 1; round <= rounds; round++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(counter, 1u);
            if (!reaches(counter, round * gridDim.x, limit)) late = 1;
            __threadfence();
        }
        __syncthreads();
        if (late) {
            if (threadIdx.x == 0) state[1] = round;
            return;
        }
        const u64 now = gb_clock();
        if (gb_thread() == 0) ticks[round - 1] = (u32)(now - last);
        last = now;
    }
    if (gb_thread() == 0) state[0] = last - first;
}
