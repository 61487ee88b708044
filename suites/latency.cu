// Dependent loads by one lane. A ring is a single random cycle: each node holds where the next one
// is, in a form that needs no arithmetic, so that the loop is a chain of loads and nothing else.
// state[0] is the walk's byte offset, kept from launch to launch; state[1] takes the device cycles.

// Random keys, all different: the order that sorts them is a random permutation.
extern "C" __global__ void keys(u64* key, u64 n, u64 seed) {
    for (u64 i = gb_thread(); i < n; i += gb_threads()) key[i] = gb_random(seed, i);
}

// Writes the ring that visits line order[0], order[1], … order[n - 1] and order[0] again.
extern "C" __global__ void link(u8* ring, const u64* order, u64 n, u64 line) {
    for (u64 i = gb_thread(); i < n; i += gb_threads()) {
        u64 next = order[i + 1 == n ? 0 : i + 1];
        *(u64*)(ring + order[i] * line) = (u64)(ring + next * line);
    }
}

extern "C" __global__ void __launch_bounds__(32) chase(const u8* ring, u64 steps, u64* state) {
    u64 here = gb_vreg((u64)ring + state[0]);
    u64 start = gb_clock();
#pragma unroll 16
    for (u64 i = 0; i < steps; ++i) here = gb_load(here);
    here = gb_vreg(here);
    u64 end = gb_clock();
    state[0] = here - (u64)ring;
    state[1] = end - start;
}

// The same in shared memory: a node is 4 bytes and holds the byte offset of the next one.
extern "C" __global__ void shared(const u32* ring, u32 nodes, u64 steps, u64* state) {
    extern __shared__ u32 nearby[];
    for (u32 i = threadIdx.x; i < nodes; i += blockDim.x) nearby[i] = ring[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    u32 here = gb_vreg((u32)state[0]);
    u64 start = gb_clock();
#pragma unroll 16
    for (u64 i = 0; i < steps; ++i) here = *(const u32*)((const u8*)nearby + here);
    here = gb_vreg(here);
    u64 end = gb_clock();
    state[0] = here;
    state[1] = end - start;
}

// Nothing: what its launch costs.
extern "C" __global__ void empty() {}
