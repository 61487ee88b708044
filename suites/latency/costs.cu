// Launch and synchronisation overhead. Every wait is bounded: after `limit` cycles a kernel gives up and reports it.

// An empty kernel, which costs only its launch.
extern "C" __global__ void empty() {}

// Reads the word as another compute unit or the host last wrote it, bypassing the first-level cache.
static __device__ __forceinline__ u64 seen(const u64* word) { return *(const volatile u64*)word; }

// Makes `rounds` barriers over the whole grid, with one lane per block. arrived[0] counts arrivals over all launches,
// and arrived[1] those before this launch. arrived[2] is set if a wait gave up. arrived[3] is set if a block passed a
// barrier before its neighbour had reached it, which is checked only if `look` is set.
extern "C" __global__ void barrier(u64* arrived, u64* slots, u64 rounds, u64 limit, u32 look, u64* state) {
    u64 base = seen(arrived + 1), start = gb_clock();
    u32 next = blockIdx.x + 1 == gridDim.x ? 0 : blockIdx.x + 1;
    for (u64 round = 1; round <= rounds; ++round) {
        if (look) *(volatile u64*)(slots + blockIdx.x) = base + round;
        __threadfence();
        atomicAdd(arrived, (u64)1);
        while (seen(arrived) < base + round * gridDim.x) {
            if (gb_clock() - start > limit) {
                arrived[2] = 1;
                return;
            }
        }
        __threadfence();
        if (look && seen(slots + next) < base + round) arrived[3] = 1;
    }
    if (blockIdx.x == 0) {
        state[1] = gb_clock() - start;
        arrived[1] = base + rounds * gridDim.x;
    }
}

// Answers the host's flag words[0] = 1, 2, … in words[16], which lies on another cache line.
extern "C" __global__ void answer(u64* words, u64 rounds, u64 limit) {
    u64 start = gb_clock();
    for (u64 round = 1; round <= rounds; ++round) {
        while (seen(words) != round) {
            if (gb_clock() - start > limit) return;
        }
        *(volatile u64*)(words + 16) = round;
        __threadfence_system();
    }
}
