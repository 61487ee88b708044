// Copies of many blocks between packed memory, in which block i is the i-th, and a pool, in which block i is at
// places[i]. A block is 2^shift vectors of 16 bytes. Either memory may be page-locked memory of the host.

extern "C" __global__ void __launch_bounds__(256)
    scatter_blocks(uint4* __restrict__ pool, const uint4* __restrict__ packed, const u32* __restrict__ places, u64 vectors,
                   u32 shift) {
    const u64 inside = ((u64)1 << shift) - 1;
    for (u64 i = gb_thread(); i < vectors; i += gb_threads())
        pool[((u64)places[i >> shift] << shift) + (i & inside)] = packed[i];
}

extern "C" __global__ void __launch_bounds__(256)
    gather_blocks(uint4* __restrict__ packed, const uint4* __restrict__ pool, const u32* __restrict__ places, u64 vectors,
                  u32 shift) {
    const u64 inside = ((u64)1 << shift) - 1;
    for (u64 i = gb_thread(); i < vectors; i += gb_threads())
        packed[i] = pool[((u64)places[i >> shift] << shift) + (i & inside)];
}
