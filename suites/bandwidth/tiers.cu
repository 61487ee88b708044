// A set that a grid uses again and again, while other data pass by once: who keeps the set in a cache? Each block owns
// a share of the set. A round reads the block's share of the passing data, then its share of the set. TIER says how the
// set is kept: PLAIN by ordinary loads, SHARED in shared memory, FIRST and LAST by the priorities of the passing data
// and of the set in the second-level cache, PREFETCH and BULK by prefetches that are issued before the passing data.
#define PLAIN 0
#define SHARED 1
#define FIRST 2
#define LAST 3
#define PREFETCH 4
#define BULK 5
#ifndef TIER
#define TIER PLAIN
#endif
#define THREADS 512
#define BATCH 4  // loads in flight per thread
#define LINE 8  // vectors of 16 bytes
#define PIECE 1024  // vectors of one bulk prefetch

extern __shared__ uint4 kept[];

static __device__ __forceinline__ u64 bits_of(uint4 v) { return (u64)(v.x ^ v.z) | (u64)(v.y ^ v.w) << 32; }

// Goes before each batch: a rotation would cancel out over some numbers of rounds.
static __device__ __forceinline__ u64 turned(u64 bits) { return bits * 0x9e3779b97f4a7c15ULL; }

template <bool IS_SET>
static __device__ __forceinline__ uint4 load(const uint4* at, u64 policy) {
    if (IS_SET && TIER == SHARED) return *at;
    if (IS_SET ? TIER == LAST : TIER == FIRST) return gb_hinted(at, policy);
    return gb_load_l2(at);
}

template <bool IS_SET>
static __device__ __forceinline__ u64 read(const uint4* data, u32 vectors, u64 policy, u64 sum) {
    for (u32 i = threadIdx.x; i < vectors; i += BATCH * THREADS) {
        uint4 v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) v[k] = load<IS_SET>(data + i + k * THREADS, policy);
        sum = turned(sum);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) sum ^= bits_of(v[k]);
    }
    return sum;
}

// Returns the next place of a chain of dependent loads in a share.
static __device__ __forceinline__ u32 next_place(u32 word, u32 share) { return (u32)((u64)word * share >> 32); }

// Round 0 reads the part `first` of the passing data. `results` receives a word per block, `cycles` the cycles of all its readings of the set, and of the dependent loads
// by one thread that each round makes before it reads the set: `steps`, which is 0 where the rate is measured.
extern "C" __global__ void __launch_bounds__(THREADS)
    reused(const uint4* set, u32 share, const uint4* passing, u32 part, u32 parts, u32 first, u32 rounds, u32 steps,
           u64* results, u64* cycles) {
    __shared__ u32 sink[THREADS];
    const u64 policy = TIER == LAST ? gb_keep_policy() : TIER == FIRST ? gb_pass_policy() : 0;
    const uint4* mine = set + (u64)blockIdx.x * share;
    u64 sum = 0, reading = 0, walking = 0;
    if (TIER == SHARED) {
        for (u32 i = threadIdx.x; i < share; i += THREADS) kept[i] = gb_load_l2(mine + i);
        __syncthreads();
    }
    const uint4* where = TIER == SHARED ? kept : mine;
    for (u32 round = 0; round < rounds; ++round) {
        if (TIER == PREFETCH)
            for (u32 i = LINE * threadIdx.x; i < share; i += LINE * THREADS) gb_prefetch_l2(mine + i);
        if (TIER == BULK && threadIdx.x == 0)
            for (u32 i = 0; i < share; i += PIECE) gb_bulk_prefetch_l2(mine + i, PIECE * 16);
        sum = read<false>(passing + ((u64)((first + round) % parts) * gridDim.x + blockIdx.x) * part, part, policy, sum);
        gb_used(sink + threadIdx.x, (u32)sum);
        __syncthreads();
        if (threadIdx.x == 0 && steps > 0) {
            u32 here = round % share;
            const u64 begin = gb_clock();
            for (u32 i = 0; i < steps; ++i) here = next_place(load<true>(where + here, policy).x, share);
            gb_used(sink, here);
            walking += gb_clock() - begin;
            sum ^= here;
        }
        __syncthreads();
        const u64 begin = gb_clock();
        sum = read<true>(where, share, policy, sum);
        gb_used(sink + threadIdx.x, (u32)sum);
        __syncthreads();
        reading += gb_clock() - begin;
    }
    sum = gb_block_xor(sum);
    if (threadIdx.x == 0) {
        results[blockIdx.x] = sum;
        cycles[2 * blockIdx.x] = reading;
        cycles[2 * blockIdx.x + 1] = walking;
    }
}

// Computes the same results from the seeds alone.
static __device__ __forceinline__ u64 reading_of(u64 seed, u64 first, u32 vectors, u64 sum) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < vectors; i += BATCH * THREADS) {
        sum = turned(sum);
#pragma unroll 1
        for (u64 at = first + i; at < first + i + BATCH * THREADS; at += THREADS)
            sum ^= gb_random(seed, 2 * at) ^ gb_random(seed, 2 * at + 1);
    }
    return sum;
}
extern "C" __global__ void __launch_bounds__(THREADS)
    reused_expected(u64 set, u32 share, u64 passing, u32 part, u32 parts, u32 first, u32 rounds, u32 steps,
                    u64* results) {
    const u64 mine = (u64)blockIdx.x * share;
    u64 sum = 0;
    for (u32 round = 0; round < rounds; ++round) {
        sum = reading_of(passing, ((u64)((first + round) % parts) * gridDim.x + blockIdx.x) * part, part, sum);
        if (threadIdx.x == 0 && steps > 0) {
            u32 here = round % share;
            for (u32 i = 0; i < steps; ++i) here = next_place((u32)gb_random(set, 2 * (mine + here)), share);
            sum ^= here;
        }
        sum = reading_of(set, mine, share, sum);
    }
    sum = gb_block_xor(sum);
    if (threadIdx.x == 0) results[blockIdx.x] = sum;
}

// Atomic additions of all threads: thread t adds to the cells t, t + 1, … modulo `last` + 1, a power of two, of 64 bits
// each. The returned values are dropped, and the sums are checked.
#define TURNS 16
extern "C" __global__ void atomic_global(u64* cells, u32 last, u32 rounds) {
    const u64 t = gb_thread();
    for (u32 round = 0; round < rounds; ++round)
#pragma unroll
        for (u32 i = 0; i < TURNS; ++i) gb_add((u64)(cells + ((t + i) & last)), t % 7 + i);
}

// The same in words of 32 bits in the shared memory of each block, whose sums are added to `cells` at the end.
extern "C" __global__ void atomic_shared_rate(u64* cells, u32 last, u32 rounds) {
    u32* const words = (u32*)kept;
    for (u32 i = threadIdx.x; i <= last; i += blockDim.x) words[i] = 0;
    __syncthreads();
    const u64 t = gb_thread();
    for (u32 round = 0; round < rounds; ++round)
#pragma unroll
        for (u32 i = 0; i < TURNS; ++i) atomicAdd(words + ((t + i) & last), (u32)(t % 7 + i));
    __syncthreads();
    for (u32 i = threadIdx.x; i <= last; i += blockDim.x) gb_add((u64)(cells + i), (u64)words[i]);
}

// Distributed shared memory: each block of a cluster reads the arrays of all other blocks of its cluster in turn. Pass k
// starts k · `away` bytes further on. `away` is 0, but the compiler does not know it and so keeps all loads in the loop.
#if !GB_HIP && __CUDA_ARCH__ >= 900
#ifndef CLUSTER
#define CLUSTER 2
#endif
#define READERS 1024
#define WORDS 4  // of 16 bytes, per thread and array
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(READERS)
    cluster_read(const uint4* data, u32 passes, u32 away, u32* results, u64* cycles) {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const u32 plus = rank * 0x9e3779b1u;
    for (u32 i = threadIdx.x; i < WORDS * READERS; i += READERS) {
        const uint4 v = data[i];
        kept[i] = make_uint4(v.x + plus, v.y + plus, v.z + plus, v.w + plus);
    }
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    const u32 base = gb_shared_address(kept) + 16 * threadIdx.x;
    uint4 sums[WORDS];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) sums[k] = make_uint4(0, 0, 0, 0);
    const u64 begin = gb_clock();
    for (u32 pass = 0; pass < passes; ++pass)
        for (u32 peer = 1; peer < CLUSTER; ++peer) {
            u32 there;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(base + pass * away), "r"((rank + peer) % CLUSTER));
#pragma unroll
            for (int k = 0; k < WORDS; ++k) {
                uint4 v;
                asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                             : "r"(there + 16 * k * READERS)
                             : "memory");
                sums[k].x = sums[k].x * 5 + v.x, sums[k].y = sums[k].y * 5 + v.y;
                sums[k].z = sums[k].z * 5 + v.z, sums[k].w = sums[k].w * 5 + v.w;
            }
        }
    u32 result = 0;
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        const u32 words[] = {sums[k].x, sums[k].y, sums[k].z, sums[k].w};
        for (int lane = 0; lane < 4; ++lane) result = (result << 5 | result >> 27) ^ words[lane];
    }
    const u64 end = gb_clock();
    results[(u64)blockIdx.x * READERS + threadIdx.x] = result;
    if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
#endif
