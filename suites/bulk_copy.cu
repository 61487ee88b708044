// A copy by bulk copies (TMA), within a device or between two. `bytes` is a multiple of 8, addresses are multiples of
// 16.
#define MOST_STAGES 16  // slots of a block's ring

// Copies through a ring of `stages` chunks in shared memory. One thread per block starts all bulk copies, and no byte
// passes through a register. A chunk has a multiple of 16 bytes. A slot is loaded again LAG chunks after the store of
// its last chunk began. If a load does not arrive in time the copy ends, and its check fails.
#if !GB_HIP && __CUDA_ARCH__ >= 900
#define LAG 2
#define PATIENCE 2000000000ULL  // cycles, about a second

static __device__ __forceinline__ bool arrived(u64* barrier, u32 parity) {
    if (gb_barrier_passed(barrier, parity)) return true;
    u64 start = gb_clock();
    while (!gb_barrier_passed(barrier, parity))
        if (gb_clock() - start > PATIENCE) return false;
    return true;
}

extern "C" __global__ void __launch_bounds__(32)
    bulk_copy(u8* target, const u8* source, u64 bytes, u32 chunk, u32 stages) {
    extern __shared__ uint4 ring[];
    __shared__ u64 loaded[MOST_STAGES];
    if (bytes % 16 != 0 && gb_thread() == 0) *(u64*)(target + bytes - 8) = *(const u64*)(source + bytes - 8);
    if (threadIdx.x != 0) return;
    const u64 whole = bytes / 16 * 16, stride = (u64)gridDim.x * chunk;
    u64 load = (u64)blockIdx.x * chunk;
    for (u32 stage = 0; stage < stages; ++stage) gb_barrier_init(loaded + stage);
    u32 filling = 0, stage = 0, parity = 0, begun = 0;
    for (; filling < stages && load < whole; ++filling, load += stride) {
        u32 size = (u32)(whole - load < chunk ? whole - load : chunk);
        gb_bulk_load((u8*)ring + filling * chunk, source + load, size, loaded + filling);
    }
    filling = 0;
    for (u64 at = (u64)blockIdx.x * chunk; at < whole; at += stride) {
        if (!arrived(loaded + stage, parity)) return;
        gb_bulk_store(target + at, (u8*)ring + stage * chunk, (u32)(whole - at < chunk ? whole - at : chunk));
        if (++begun > LAG && load < whole) {  // the store that began LAG chunks ago has read its slot
            gb_bulk_wait_read<LAG>();
            u32 size = (u32)(whole - load < chunk ? whole - load : chunk);
            gb_bulk_load((u8*)ring + filling * chunk, source + load, size, loaded + filling);
            filling = filling + 1 == stages ? 0 : filling + 1;
            load += stride;
        }
        if (++stage == stages) stage = 0, parity ^= 1;
    }
    gb_bulk_wait();
}
#endif
