// Adds up the sums of panels of rows, for products whose grid stays resident on Hopper.
//
// Each of the grid's blocks takes an equal part of `all` units, and a panel has the `size` units from `start` on. Returns
// whether this block now has the whole sums of the panel, to the THREADS threads that multiply. Where blocks share a panel,
// the last one to arrive adds up the sums that the others left in `partial`, which has two places for each block. The first
// block of a panel mostly ends last: it first looks whether all others have arrived, and then leaves nothing. The sums are
// always added in the same order. `arrived`, the panel's counter, is 0 before and afterwards.
template <int THREADS, int SUMS>
static __device__ __forceinline__ bool gb_is_whole(float (&sums)[SUMS], u64 start, u32 size, u64 all, float* partial,
                                                   u32* arrived) {
    __shared__ u32 before;
    const u64 first = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x, stop = start + size;
    if (first <= start && stop <= end) return true;
    const u32 from = (u32)(((start + 1) * gridDim.x - 1) / all), to = (u32)((stop * gridDim.x - 1) / all);
    const auto arrive = [&] {
        gb_group_barrier(1, THREADS);
        if (threadIdx.x == 0) before = gb_arrive(arrived);
        gb_group_barrier(1, THREADS);
        return before;
    };
    const bool is_held = first <= start && arrive() == to - from;
    if (!is_held) {
        float* const there = partial + (2 * blockIdx.x + (first < start)) * (u64)(SUMS * THREADS) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) there[i * THREADS] = sums[i];
        if (arrive() != to - from + 1) return false;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0;
    }
    if (threadIdx.x == 0) *arrived = 0;
    for (u32 block = from + is_held; block <= to; ++block) {
        const bool is_second = all * block / gridDim.x < start;
        const float* const there = partial + (2 * block + is_second) * (u64)(SUMS * THREADS) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] += gb_load_l2(there + i * THREADS);
    }
    return true;
}
