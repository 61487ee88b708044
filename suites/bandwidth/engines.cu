// Copies within a device, or between it and page-locked host memory: bytes is a multiple of 8, addresses are of 16.
#define THREADS 128
#define BATCH 8         // loads in flight a thread of a grid that stays
#define STAGES 8        // of a thread's ring in shared memory
#define MOST_STAGES 16  // of a block's ring

// The last 8 bytes where bytes is no multiple of 16.
static __device__ __forceinline__ void copy_rest(u8* target, const u8* source, u64 bytes) {
    if (bytes % 16 != 0 && gb_thread() == 0) *(u64*)(target + bytes - 8) = *(const u64*)(source + bytes - 8);
}

// Load and store, one vector of 16 bytes a thread: the grid covers the copy.
extern "C" __global__ void __launch_bounds__(THREADS)
    load_store(u8* __restrict__ target, const u8* __restrict__ source, u64 bytes) {
    u64 i = gb_thread();
    if (i < bytes / 16) ((uint4*)target)[i] = ((const uint4*)source)[i];
    copy_rest(target, source, bytes);
}

// The same by a grid of any size, each thread with BATCH vectors in flight.
extern "C" __global__ void __launch_bounds__(1024, 1)
    load_store_resident(u8* __restrict__ target, const u8* __restrict__ source, u64 bytes) {
    const uint4* from = (const uint4*)source;
    uint4* to = (uint4*)target;
    const u64 vectors = bytes / 16, step = gb_threads();
    u64 i = gb_thread();
    for (; i + (BATCH - 1) * step < vectors; i += BATCH * step) {
        uint4 v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) v[k] = gb_word(from + i + k * step);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) to[i + k * step] = v[k];
    }
    for (; i < vectors; i += step) to[i] = from[i];
    copy_rest(target, source, bytes);
}

// Asynchronous loads of 16 bytes a thread into a ring of its own in shared memory (16 · STAGES bytes a thread),
// from where it stores them.
#if !GB_HIP && __CUDA_ARCH__ >= 800
extern "C" __global__ void async_copy(u8* target, const u8* source, u64 bytes) {
    extern __shared__ uint4 ring[];
    uint4* slots = ring + threadIdx.x;
    const u64 vectors = bytes / 16, step = gb_threads(), first = gb_thread();
    u64 ahead = first;
    for (u32 stage = 0; stage < STAGES; ++stage, ahead += step) {
        if (ahead < vectors) gb_async_load(slots + stage * blockDim.x, source + 16 * ahead);
        gb_async_commit();
    }
    u32 stage = 0;
    for (u64 i = first; i < vectors; i += step, ahead += step) {
        gb_async_wait<STAGES - 1>();
        uint4* slot = slots + stage * blockDim.x;
        ((uint4*)target)[i] = *slot;
        if (ahead < vectors) gb_async_load(slot, source + 16 * ahead);
        gb_async_commit();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_rest(target, source, bytes);
}
#endif

// Bulk copies into a ring of `stages` chunks in shared memory and out of it: one thread a block starts them all, and no
// byte passes a register. A chunk, a multiple of 16 bytes, is loaded LAG chunks after the one before it in its slot
// began to be stored. A load that does not come in time ends the copy, and its check fails.
#if !GB_HIP && __CUDA_ARCH__ >= 900
#define LAG 2
#define PATIENCE 2000000000ULL  // cycles, a second

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
    copy_rest(target, source, bytes);
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
        if (++begun > LAG && load < whole) {  // the store of LAG chunks ago has left its slot
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
