// Latency of registers, shared memory and its banks, a neighbour's shared memory, constant memory, and atomics. Each
// kernel is one chain: an operation waits for the result of the previous one and for nothing else. state[0] is the
// position of a chain, kept from launch to launch; state[1] is its cycles.

extern __shared__ u32 nearby[];

// Fills the ring of the block: word i holds the byte offset of the next node.
static __device__ __forceinline__ void fill(const u32* ring, u32 words, u32 plus) {
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) nearby[i] = ring[i] + plus;
}

extern "C" __global__ void shared(const u32* ring, u32 nodes, u64 steps, u64* state) {
    fill(ring, nodes, 0);
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

// A warp loads in lock-step: each of its lanes walks a ring of its own. The host chooses how many rings share a bank.
extern "C" __global__ void conflict(const u32* ring, u32 words, u32 warp, u64 steps, u32* lanes, u64* state) {
    fill(ring, words, 0);
    __syncthreads();
    if (threadIdx.x >= warp) return;
    u32 here = gb_vreg(lanes[threadIdx.x]);
    u64 start = gb_clock();
#pragma unroll 16
    for (u64 i = 0; i < steps; ++i) here = *(const u32*)((const u8*)nearby + here);
    here = gb_vreg(here);
    u64 end = gb_clock();
    lanes[threadIdx.x] = here;
    if (threadIdx.x == 0) state[1] = end - start;
}

// Walks a ring in the shared memory of the cluster's other block. Its nodes hold addresses in the window of the
// cluster.
#if !GB_HIP && __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster(const u32* ring, u32 nodes, u64 steps, u64* state) {
    u32 mine = (u32)__cvta_generic_to_shared(nearby), other;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(other) : "r"(mine));
    fill(ring, nodes, other);
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        u32 here = gb_vreg((u32)state[0] + other);
        u64 start = gb_clock();
#pragma unroll 16
        for (u64 i = 0; i < steps; ++i)
            asm volatile("ld.shared::cluster.u32 %0, [%0];" : "+r"(here)::"memory");
        u64 end = gb_clock() + (gb_vreg(here) & 0);
        state[0] = here - other;
        state[1] = end - start;
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
#endif

// Barriers of a block, and of a cluster of blocks, one after another. If `checked`, each thread writes the number of the
// barrier into its slot before it, and looks for it in its neighbour's slot, in the next block of a cluster, after it.
// state[0] counts barriers, state[2] the threads that passed one too early.
extern "C" __global__ void block_barrier(u64 rounds, u32 checked, u64* state) {
    volatile u32* const slots = nearby;
    u64 early = 0;
    slots[threadIdx.x] = 0;
    __syncthreads();
    const u64 start = gb_clock();
    for (u64 round = 1; round <= rounds; ++round) {
        if (checked) slots[threadIdx.x] = (u32)round;
        __syncthreads();
        if (checked) early += slots[(threadIdx.x + 1) % blockDim.x] < (u32)round;
    }
    const u64 end = gb_clock();
    if (early) atomicAdd(state + 2, early);
    if (threadIdx.x == 0) state[0] += rounds, state[1] = end - start;
}
#if !GB_HIP && __CUDA_ARCH__ >= 900
#ifndef CLUSTER
#define CLUSTER 2
#endif
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) cluster_barrier(u64 rounds, u32 checked, u64* state) {
    volatile u32* const slots = nearby;
    u64 early = 0;
    u32 next;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(next)
                 : "r"(gb_shared_address(nearby) + 4 * threadIdx.x), "r"((blockIdx.x + 1) % CLUSTER));
    slots[threadIdx.x] = 0;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    const u64 start = gb_clock();
    for (u64 round = 1; round <= rounds; ++round) {
        if (checked) slots[threadIdx.x] = (u32)round;
        asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
        if (!checked) continue;
        u32 seen;
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(seen) : "r"(next) : "memory");
        early += seen < (u32)round;
    }
    const u64 end = gb_clock();
    if (early) atomicAdd(state + 2, early);
    if (blockIdx.x == 0 && threadIdx.x == 0) state[0] += rounds, state[1] = end - start;
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
#endif

// Walks a ring in constant memory, which has its own caches: one node per 64 bytes, walked once untimed.
__constant__ u32 fixed[16384];

extern "C" __global__ void constant(u64 nodes, u64 steps, u64* state) {
    u32 here = (u32)state[0];
    for (u64 i = 0; i < nodes; ++i) here = fixed[here];
    u64 start = gb_clock();
#pragma unroll 16
    for (u64 i = 0; i < steps; ++i) here = fixed[here];
    here = gb_vreg(here);
    u64 end = gb_clock();
    state[0] = here;
    state[1] = end - start;
}

// x = a·x + b, a chain in registers that starts anew with each launch.
#define DEPENDENT(name, REAL, multiply_add)                                                        \
    extern "C" __global__ void name(REAL x, REAL a, REAL b, u64 steps, REAL* out, u64* state) {    \
        u64 start = gb_clock();                                                                    \
        _Pragma("unroll 64") for (u64 i = 0; i < steps; ++i) x = multiply_add;                     \
        out[0] = x;                                                                                \
        u64 end = gb_clock();                                                                      \
        state[1] = end - start;                                                                    \
    }
DEPENDENT(float32, float, fmaf(a, x, b))
DEPENDENT(float64, double, fma(a, x, b))
DEPENDENT(uint32, u32, gb_vreg(a * x + b))

// Atomic additions, each of the value that the last one returned. They take turns on `last` + 1 cells, a power of two,
// 128 bytes apart, because cells differ in their distance. The host computes the expected cells and value.
#define ATOMIC(name, addition)                                                                     \
    extern "C" __global__ void name(u64* cells, u64 last, u64 steps, u64* state) {                 \
        u64 x = gb_vreg(state[0]);                                                                 \
        u64 start = gb_clock();                                                                    \
        _Pragma("unroll 8") for (u64 i = 0; i < steps; ++i) x = addition(cells + (i & last) * 16, x); \
        x = gb_vreg(x);                                                                            \
        u64 end = gb_clock();                                                                      \
        state[0] = x;                                                                              \
        state[1] = end - start;                                                                    \
    }
ATOMIC(atomic, atomicAdd)
ATOMIC(atomic_system, atomicAdd_system)

// 32 bits wide, because NVIDIA adds 64 bits in shared memory by a loop of compare-and-swap.
extern "C" __global__ void atomic_shared(u32* kept, u64 last, u64 steps, u64* state) {
    for (u64 i = 0; i <= last; ++i) nearby[i * 32] = kept[i * 32];
    u32 x = gb_vreg((u32)state[0]);
    u64 start = gb_clock();
#pragma unroll 8
    for (u64 i = 0; i < steps; ++i) x = atomicAdd(nearby + (i & last) * 32, x);
    x = gb_vreg(x);
    u64 end = gb_clock();
    state[0] = x;
    state[1] = end - start;
    for (u64 i = 0; i <= last; ++i) kept[i * 32] = nearby[i * 32];
}
