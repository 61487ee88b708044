// Copies within a device, or between it and page-locked host memory. `bytes` is a multiple of 8, addresses are
// multiples of 16.
#define THREADS 128
#define BATCH 8         // loads in flight per thread of a resident grid
#define STAGES 8        // slots of a thread's ring in shared memory

// Copies the last 8 bytes if `bytes` is not a multiple of 16.
static __device__ __forceinline__ void copy_rest(u8* target, const u8* source, u64 bytes) {
    if (bytes % 16 != 0 && gb_thread() == 0) *(u64*)(target + bytes - 8) = *(const u64*)(source + bytes - 8);
}

// Loads and stores one vector of 16 bytes per thread: the grid covers the whole copy.
extern "C" __global__ void __launch_bounds__(THREADS)
    load_store(u8* __restrict__ target, const u8* __restrict__ source, u64 bytes) {
    u64 i = gb_thread();
    if (i < bytes / 16) ((uint4*)target)[i] = ((const uint4*)source)[i];
    copy_rest(target, source, bytes);
}

// Makes the same copy by a grid of any size, with BATCH vectors in flight per thread.
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

// Each thread loads 16 bytes at a time asynchronously into its own ring in shared memory (16 · STAGES bytes per thread)
// and stores them from there.
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
