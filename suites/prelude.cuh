// The portable prelude, which precedes every kernel and compiles with NVRTC and with hipRTC. A feature of one vendor is
// hidden behind a gb_ name; kernels use the subset that both vendors share.
#if defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__HIP_DEVICE_COMPILE__)
#define GB_HIP 1
#define GB_FULLMASK 0xffffffffffffffffULL
#else
#define GB_HIP 0
#define GB_FULLMASK 0xffffffffu
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// The index of this thread and the number of threads in a one-dimensional grid, 64 bits wide.
static __device__ __forceinline__ u64 gb_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ __forceinline__ u64 gb_threads() { return (u64)gridDim.x * blockDim.x; }

// Returns word i of the random words of a seed by the finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014). For
// one seed it is a bijection of i, so no word occurs twice.
static __device__ __forceinline__ u64 gb_random(u64 seed, u64 i) {
    u64 x = seed + i * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// Keeps a value live and opaque to the compiler. On AMD it also pins it to a vector register; otherwise an address that
// is the same for the whole wave would be read through the scalar cache.
#if GB_HIP
static __device__ __forceinline__ u32 gb_vreg(u32 x) { asm volatile("" : "+v"(x)); return x; }
static __device__ __forceinline__ u64 gb_vreg(u64 x) { asm volatile("" : "+v"(x)); return x; }
#else
static __device__ __forceinline__ u32 gb_vreg(u32 x) { asm volatile("" : "+r"(x)); return x; }
static __device__ __forceinline__ u64 gb_vreg(u64 x) { asm volatile("" : "+l"(x)); return x; }
#endif

// Loads a word of 4, 8 or 16 bytes in one instruction. HIP's uint4 is a class whose parts may be loaded twice or lie in
// scratch memory, so on AMD the load is of the compiler's own vector type.
#if GB_HIP
template <class TO, class FROM>
static __device__ __forceinline__ TO gb_as(const FROM& from) {
    static_assert(sizeof(TO) == sizeof(FROM), "the same bits");
    TO to;
    __builtin_memcpy(&to, &from, sizeof(TO));
    return to;
}
typedef u64 gb_u64x2 __attribute__((ext_vector_type(2)));
template <class WORD>
static __device__ __forceinline__ WORD gb_word(const WORD* at) { return *at; }
static __device__ __forceinline__ uint2 gb_word(const uint2* at) { return gb_as<uint2>(*(const u64*)at); }
static __device__ __forceinline__ uint4 gb_word(const uint4* at) { return gb_as<uint4>(*(const gb_u64x2*)at); }
#else
template <class WORD>
static __device__ __forceinline__ WORD gb_word(const WORD* at) { return *at; }
#endif

// Makes the next reading of the clock wait for a value: on NVIDIA by a store to shared memory, on AMD by any use of it,
// because AMD's clock is read after all loads have completed.
static __device__ __forceinline__ void gb_used(volatile u32* sink, u32 value) {
#if GB_HIP
    gb_vreg(value);
#else
    *sink = value;
#endif
}

// Reads the device clock in cycles. The compiler does not move it. (s_memtime of AMD counts at the shader clock.)
#if GB_HIP
static __device__ __forceinline__ u64 gb_clock() {
    asm volatile("s_waitcnt vmcnt(0) lgkmcnt(0)" ::: "memory");
    u64 t = clock64();
    asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
    return t;
}
#else
static __device__ __forceinline__ u64 gb_clock() {
    u64 t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
}
#endif

// Loads the 64-bit word at a global address through every cache, by exactly one load instruction.
#if GB_HIP
static __device__ __forceinline__ u64 gb_load(u64 address) {
    return *(const __attribute__((address_space(1))) u64*)address;
}
#else
static __device__ __forceinline__ u64 gb_load(u64 address) {
    u64 value;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}
#endif

// The same load from the second-level cache, bypassing the first one. It sees stores of other compute units, and two
// such loads of one address remain two loads. On NVIDIA the instruction is that of `ld.cg`.
#if GB_HIP
static __device__ __forceinline__ u64 gb_load_l2(u64 address) {
    return __hip_atomic_load((const __attribute__((address_space(1))) u64*)address, __ATOMIC_RELAXED,
                             __HIP_MEMORY_SCOPE_AGENT);
}
#else
static __device__ __forceinline__ u64 gb_load_l2(u64 address) {
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}
#endif

// Adds to the 64-bit word at a global address, atomically for the whole device, and returns the value before.
#if GB_HIP
static __device__ __forceinline__ u64 gb_add(u64 address, u64 value) {
    return __hip_atomic_fetch_add((__attribute__((address_space(1))) u64*)address, value, __ATOMIC_RELAXED,
                                  __HIP_MEMORY_SCOPE_AGENT);
}
#else
static __device__ __forceinline__ u64 gb_add(u64 address, u64 value) {
    u64 before;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(address), "l"(value) : "memory");
    return before;
}
#endif

// Reads the nanoseconds of a clock that all compute units share; its ticks may be as coarse as a microsecond. AMD's
// clock counts at 100 MHz (MI200 and MI300: "HIP Programming Manual", wall_clock64).
static __device__ __forceinline__ u64 gb_nanoseconds() {
#if GB_HIP
    return wall_clock64() * 10;
#else
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
#endif
}

// Returns the number of the SM or CU that this thread runs on.
static __device__ __forceinline__ u32 gb_unit() {
#if GB_HIP
    return __smid();
#else
    u32 unit;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(unit));
    return unit;
#endif
}

// Pauses briefly in the body of a loop that waits, so that other threads run.
static __device__ __forceinline__ void gb_pause() {
#if GB_HIP
    __builtin_amdgcn_s_sleep(2);
#elif __CUDA_ARCH__ >= 700
    __nanosleep(64);
#endif
}

// A flag that other devices and the host see: read its value; store a value; add one; add one and return the value
// before. These operations order no other accesses, because flags carry no data.
#if GB_HIP
static __device__ __forceinline__ u32 gb_seen(const u32* flag) {
    return __hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
static __device__ __forceinline__ void gb_post(u32* flag, u32 value) {
    __hip_atomic_store(flag, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
static __device__ __forceinline__ void gb_add_one(u32* flag) {
    __hip_atomic_fetch_add(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
static __device__ __forceinline__ u32 gb_add_and_see(u32* flag) {
    return __hip_atomic_fetch_add(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
#else
static __device__ __forceinline__ u32 gb_seen(const u32* flag) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
static __device__ __forceinline__ void gb_post(u32* flag, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
static __device__ __forceinline__ void gb_add_one(u32* flag) {
    asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
}
static __device__ __forceinline__ u32 gb_add_and_see(u32* flag) {
    u32 value;
    asm volatile("atom.relaxed.sys.global.add.u32 %0, [%1], 1;" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
#endif

// Returns the value of the lane whose number differs by `mask`. Every lane of the warp must call it.
template <class A>
static __device__ __forceinline__ A gb_shuffle_xor(A value, int mask) {
#if GB_HIP
    return __shfl_xor(value, mask);
#else
    return __shfl_xor_sync(GB_FULLMASK, value, mask);
#endif
}

// Returns the value of the given lane of the warp. Every lane of the warp must call it.
template <class A>
static __device__ __forceinline__ A gb_shuffle(A value, int lane) {
#if GB_HIP
    return __shfl(value, lane);
#else
    return __shfl_sync(GB_FULLMASK, value, lane);
#endif
}

// Returns the exclusive or of one word per thread over a block of whole warps, valid in thread 0. Every thread must
// call it.
static __device__ __forceinline__ u64 gb_block_xor(u64 mine) {
    __shared__ u64 warps[32];
    for (int mask = warpSize / 2; mask > 0; mask /= 2) mine ^= gb_shuffle_xor(mine, mask);
    if (threadIdx.x % warpSize == 0) warps[threadIdx.x / warpSize] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < (int)(blockDim.x / warpSize); ++warp) mine ^= warps[warp];
    return mine;
}

// Loads a word of up to 16 bytes from the second-level cache. AMD has no such load of 16 bytes: there, data must be
// larger than the first-level cache (16 or 32 KiB), or be read after __threadfence(), which empties that cache.
template <class WORD>
static __device__ __forceinline__ WORD gb_load_l2(const WORD* at) {
#if GB_HIP
    return gb_word(at);
#else
    return __ldcg(at);
#endif
}

// Copies from global to shared memory that bypass the registers (cp.async; PTX ISA, since sm_80): 16 bytes per thread,
// in groups that complete in order.
#if !GB_HIP && __CUDA_ARCH__ >= 800
static __device__ __forceinline__ u32 gb_shared_address(const void* shared) {
    return (u32)__cvta_generic_to_shared(shared);
}
static __device__ __forceinline__ void gb_async_load(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(gb_shared_address(shared)), "l"(global) : "memory");
}
static __device__ __forceinline__ void gb_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
static __device__ __forceinline__ void gb_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// Transposes a matrix of 8 × 8 halves of a warp (movmatrix; PTX ISA, since sm_75). A lane passes and receives columns
// 2·(lane % 4) and 2·(lane % 4) + 1 of row lane / 4.
static __device__ __forceinline__ u32 gb_transpose(u32 two) {
    u32 found;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(found) : "r"(two));
    return found;
}
#if __CUDA_ARCH__ >= 890
// Returns two numbers of e4m3, the low 16 bits of a word, as halves (cvt; PTX ISA, since sm_89).
static __device__ __forceinline__ u32 gb_e4m3_halves(u32 two) {
    u32 found;
    asm("{\n .reg .b16 low;\n cvt.u16.u32 low, %1;\n cvt.rn.f16x2.e4m3x2 %0, low;\n}" : "=r"(found) : "r"(two));
    return found;
}
// Returns two floats as numbers of e4m3, the nearest or the largest finite one, in the low 16 bits (cvt; since sm_89).
static __device__ __forceinline__ u32 gb_to_e4m3(float low, float high) {
    u32 two;
    asm("{\n .reg .b16 both;\n cvt.rn.satfinite.e4m3x2.f32 both, %2, %1;\n cvt.u32.u16 %0, both;\n}"
        : "=r"(two)
        : "f"(low), "f"(high));
    return two;
}
#endif
// Loads four matrices of 8 × 8 halves from shared memory (ldmatrix; PTX ISA, since sm_75). Lane 8·i + j passes the
// address of the 16 bytes of row j of matrix i. Each lane receives, of each matrix, columns 2·(lane % 4) and 2·(lane %
// 4) + 1 of row lane / 4.
static __device__ __forceinline__ void gb_matrices(u32 (&found)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(gb_shared_address(row)));
}
#elif GB_HIP  // through registers, because before gfx950 CDNA's direct loads into shared memory have only 4 bytes
static __device__ __forceinline__ void gb_async_load(void* shared, const void* global) {
    *(uint4*)shared = *(const uint4*)global;
}
static __device__ __forceinline__ void gb_async_commit() {}
template <int PENDING>
static __device__ __forceinline__ void gb_async_wait() {}
#endif

// Returns whether this block is the last of `blocks` to arrive at a counter. It then sees everything that the others
// wrote before, if it reads it by gb_load_l2. Resets the counter to 0 for the next launch.
#if GB_HIP
static __device__ __forceinline__ u32 gb_arrive(u32* arrived) {
    return __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
#elif __CUDA_ARCH__ >= 700
static __device__ __forceinline__ u32 gb_arrive(u32* arrived) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
    return before;
}
#else
static __device__ __forceinline__ u32 gb_arrive(u32* arrived) {
    __threadfence();
    const u32 before = atomicAdd(arrived, 1u);
    __threadfence();
    return before;
}
#endif
static __device__ __forceinline__ bool gb_is_last(u32* arrived, u32 blocks) {
    __shared__ u32 before;
    __syncthreads();
    if (threadIdx.x == 0) {
        before = gb_arrive(arrived);
        if (before + 1 == blocks) *arrived = 0;
    }
    __syncthreads();
    return before + 1 == blocks;
}

// Launches that overlap (griddepcontrol; PTX ISA, since sm_90). A kernel that was launched `early` begins as soon as
// every block of the previous launch has allowed it. It sees the results of that launch only after it has waited for
// its end. Before that it may read only data that no launch writes, such as weights and tables. Pointers to data that
// it reads later are not `const __restrict__`, because such loads may be moved before the wait. Every kernel in a
// sequence of early launches waits, so that it waits for all launches before it.
#if !GB_HIP && __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void gb_allow_next() { asm volatile("griddepcontrol.launch_dependents;"); }
static __device__ __forceinline__ void gb_wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
static __device__ __forceinline__ void gb_allow_next() {}
static __device__ __forceinline__ void gb_wait_for_previous() {}
#endif

// Bulk copies (cp.async.bulk; PTX ISA, since sm_90): one thread starts the copy of many bytes, a multiple of 16. Loads
// complete on a barrier in shared memory, stores complete in groups. Addresses are multiples of 16.
#if !GB_HIP && __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void gb_barrier_init(u64* barrier, u32 arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gb_shared_address(barrier)), "r"(arrivals) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Arrives at a barrier once; the second function also announces the bytes of copies.
static __device__ __forceinline__ void gb_barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(gb_shared_address(barrier)) : "memory");
}
static __device__ __forceinline__ void gb_barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gb_shared_address(barrier)), "r"(bytes)
                 : "memory");
}
static __device__ __forceinline__ void gb_bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
    u32 there = gb_shared_address(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(there), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     gb_shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(there)
                 : "memory");
}
// Returns whether the phase of the given parity is over, after waiting for it briefly.
static __device__ __forceinline__ bool gb_barrier_passed(u64* barrier, u32 parity) {
    u32 passed;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(gb_shared_address(barrier)), "r"(parity)
        : "memory");
    return passed != 0;
}
// Waits until the phase of the given parity is over; ends the kernel with an error if that takes seconds.
static __device__ __forceinline__ void gb_barrier_await(u64* barrier, u32 parity) {
    if (gb_barrier_passed(barrier, parity)) return;
    const u64 start = gb_clock();
    while (!gb_barrier_passed(barrier, parity))
        if (gb_clock() - start > 4000000000ULL) __trap();
}
// A tensor map of the driver (cuTensorMapEncodeTiled), and the copy of its box at column x and row y.
struct __align__(64) GbTensorMap {
    u64 words[16];
};
static __device__ __forceinline__ void gb_tensor_load(
    void* shared, const GbTensorMap* map, u32 x, u32 y, u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            gb_shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(gb_shared_address(barrier))
        : "memory");
}
// Blocks of a cluster: the number of this one; a barrier of all threads, after which each block's barriers are ready for the
// others; an arrival at the barrier of a block; and a copy of a box into both blocks of a pair, to the same place, which
// completes on the barrier of each. With `.release.cluster` each arrival would contain a fence of the whole device.
static __device__ __forceinline__ u32 gb_cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ __forceinline__ void gb_cluster_barrier() {
    asm volatile(
        "fence.mbarrier_init.release.cluster;\n"
        "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ void gb_barrier_arrive_at(u64* barrier, u32 block) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(gb_shared_address(barrier)),
        "r"(block)
        : "memory");
}
static __device__ __forceinline__ void gb_tensor_load_both(
    void* shared, const GbTensorMap* map, u32 x, u32 y, u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(gb_shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(gb_shared_address(barrier)), "h"((unsigned short)3)
        : "memory");
}
static __device__ __forceinline__ void gb_bulk_store(void* global, const void* shared, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(gb_shared_address(shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Wait until all stores but the last PENDING have read their shared memory; wait until all stores have completed.
template <int PENDING>
static __device__ __forceinline__ void gb_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
static __device__ __forceinline__ void gb_bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#endif

// Hopper's matrix instructions of a warpgroup (wgmma; PTX ISA 8.0, "Asynchronous Warpgroup Level Matrix Instructions").
// Products of registers and shared memory are begun, queued in a group, and awaited; a fence makes earlier stores to
// shared memory visible to them.
#if !GB_HIP && defined(__CUDA_ARCH_FEAT_SM90_ALL)
static __device__ __forceinline__ void gb_async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
static __device__ __forceinline__ void gb_begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void gb_end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
static __device__ __forceinline__ void gb_await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Lets registers keep the operand of products up to this place in the program.
static __device__ __forceinline__ void gb_keep(u32 (&a)[4]) {
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}
// Waits until the phase of a barrier is over, between products: a branch of the program there would end their queue. Another
// warp has to bound this wait by gb_barrier_await for what follows it.
static __device__ __forceinline__ void gb_products_await(u64* barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred over;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n@!over bra AGAIN;\n}" ::"r"(
            gb_shared_address(barrier)),
        "r"(parity)
        : "memory");
}
// Let a warpgroup have fewer or more registers per thread, as all of a block's warpgroups do at once.
template <int COUNT>
static __device__ __forceinline__ void gb_fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
static __device__ __forceinline__ void gb_more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// Describes a matrix whose rows of 128 bytes follow each other in the 128-byte swizzle: 1024 bytes for 8 rows.
static __device__ __forceinline__ u64 gb_described(const void* shared) {
    return (u64)((gb_shared_address(shared) & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
}
// Stores four matrices of 8 × 8 halves, as gb_matrices loads them.
static __device__ __forceinline__ void gb_store_matrices(void* row, const uint4& v) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(gb_shared_address(row)),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
// d = a·b, or d += a·b with `adds`: 64 rows of a, 16 halves each, in registers; 8, 16, 32, 64 or 128 columns of b, or 256
// of a `turned` b, in which the columns lie side by side. With `shared`, a is in shared memory too.
#define GB_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GB_SUMS_16(i) GB_SUMS_4(i), GB_SUMS_4(i + 4), GB_SUMS_4(i + 8), GB_SUMS_4(i + 12)
#define GB_PRODUCTS(NAME, COUNT, COLUMNS, D, A, B, ADDS, TURNED, ...)                                        \
    static __device__ __forceinline__ void NAME(float (&d)[COUNT], const u32 (&a)[4], u64 b, u32 adds) {     \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\n"                                      \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.f16.f16 {" D "}, {" A "}, " B      \
                     ", p, 1, 1, " TURNED ";\n}"                                                             \
                     : __VA_ARGS__                                                                           \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                       \
    }
#define GB_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define GB_16 GB_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GB_32 GB_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GB_64                                                                                                   \
    GB_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "   \
          "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
GB_PRODUCTS(gb_products, 4, "8", "%0, %1, %2, %3", "%4, %5, %6, %7", "%8", "%9", "0", GB_SUMS_4(0))
GB_PRODUCTS(gb_products, 8, "16", GB_8, "%8, %9, %10, %11", "%12", "%13", "0", GB_SUMS_4(0), GB_SUMS_4(4))
GB_PRODUCTS(gb_products, 16, "32", GB_16, "%16, %17, %18, %19", "%20", "%21", "0", GB_SUMS_16(0))
GB_PRODUCTS(gb_products, 32, "64", GB_32, "%32, %33, %34, %35", "%36", "%37", "0", GB_SUMS_16(0), GB_SUMS_16(16))
#define GB_SUMS_64(i) GB_SUMS_16(i), GB_SUMS_16(i + 16), GB_SUMS_16(i + 32), GB_SUMS_16(i + 48)
GB_PRODUCTS(gb_products, 64, "128", GB_64, "%64, %65, %66, %67", "%68", "%69", "0", GB_SUMS_64(0))
#define GB_128                                                                                                   \
    GB_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, "    \
          "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "    \
          "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "     \
          "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
GB_PRODUCTS(gb_products_turned, 128, "256", GB_128, "%128, %129, %130, %131", "%132", "%133", "1", GB_SUMS_64(0),
            GB_SUMS_64(64))
#define GB_PRODUCTS_SHARED(COUNT, COLUMNS, D, A, B, ADDS, ...)                                                   \
    static __device__ __forceinline__ void gb_products_shared(float (&d)[COUNT], u64 a, u64 b, u32 adds) {      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.f16.f16 {" D "}, " A ", " B           \
                     ", p, 1, 1, 0, 0;\n}"                                                                      \
                     : __VA_ARGS__                                                                              \
                     : "l"(a), "l"(b), "r"(adds));                                                              \
    }
GB_PRODUCTS_SHARED(8, "16", GB_8, "%8", "%9", "%10", GB_SUMS_4(0), GB_SUMS_4(4))
GB_PRODUCTS_SHARED(16, "32", GB_16, "%16", "%17", "%18", GB_SUMS_16(0))
GB_PRODUCTS_SHARED(32, "64", GB_32, "%32", "%33", "%34", GB_SUMS_16(0), GB_SUMS_16(16))
static __device__ __forceinline__ void gb_products_turned(float (&d)[128], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" GB_128 "}, %128, %129, 1, 1, 1, 0, 1;"
                 : GB_SUMS_64(0), GB_SUMS_64(64)
                 : "l"(a), "l"(b));
}
// Returns 2 to the power of a float by one instruction, to 2 units in the last place; a denormal result is 0.
static __device__ __forceinline__ float gb_exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
// Returns two floats as halves; the first is the low one.
static __device__ __forceinline__ u32 gb_packed(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
// Waits for `threads` threads of the block, whole warps, that meet at the barrier with this number, 1 to 15; the second
// function only arrives there.
static __device__ __forceinline__ void gb_group_barrier(u32 number, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
static __device__ __forceinline__ void gb_group_arrive(u32 number, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
#endif

// Blackwell's matrix instructions (tcgen05; PTX ISA 8.6, "TensorCore 5th Generation Family Instructions"): one thread
// multiplies matrices in shared memory and adds to sums in tensor memory. Compiled, but never run by this project.
#if !GB_HIP && (defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
                defined(__CUDA_ARCH_FEAT_SM110_ALL))
#define GB_TCGEN05 1
// Reserves columns of tensor memory, and frees them; by all lanes of one warp. The address is written to `shared`.
template <int COLUMNS_RESERVED>
static __device__ __forceinline__ void gb_tensor_memory(u32* shared) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(gb_shared_address(shared)),
                 "n"(COLUMNS_RESERVED)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
template <int COLUMNS_RESERVED>
static __device__ __forceinline__ void gb_free_tensor_memory(u32 address) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(COLUMNS_RESERVED));
}
// Describes a matrix whose rows of 128 bytes follow each other in the 128-byte swizzle: 1024 bytes for 8 rows.
static __device__ __forceinline__ u64 gb_described(const void* shared) {
    return (u64)((gb_shared_address(shared) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}
// Describes 128 × `columns` sums in float32; `format` is 0 for float16 and e4m3, 1 for bfloat16, and 2 for tf32.
static __device__ __forceinline__ u32 gb_product_of(u32 format, u32 columns) {
    return 1u << 4 | format << 7 | format << 10 | columns / 8 << 17 | 128u / 16 << 24;
}
#define GB_TCGEN05_MMA(KIND, sums, a, b, product, adds)                                                         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"                                                    \
                 "tcgen05.mma.cta_group::1.kind::" KIND " [%0], %1, %2, %3, p;\n}" ::"r"(sums), "l"(a), "l"(b),  \
                 "r"(product), "r"((u32)(adds))                                                                 \
                 : "memory")
// Arrives at a barrier when all earlier products of this thread are done.
static __device__ __forceinline__ void gb_products_arrive(u64* barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                     gb_shared_address(barrier))
                 : "memory");
}
static __device__ __forceinline__ void gb_after_barrier() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
static __device__ __forceinline__ void gb_before_barrier() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
// Reads 16 sums of this lane's row: warp w of a group of four reads the rows from 32·w on.
static __device__ __forceinline__ void gb_read_sums(u32 address, u32 (&sums)[16]) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
                 "%14, %15}, [%16];"
                 : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3]), "=r"(sums[4]), "=r"(sums[5]),
                   "=r"(sums[6]), "=r"(sums[7]), "=r"(sums[8]), "=r"(sums[9]), "=r"(sums[10]), "=r"(sums[11]),
                   "=r"(sums[12]), "=r"(sums[13]), "=r"(sums[14]), "=r"(sums[15])
                 : "r"(address));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
#endif

// Half precision without a header, because no header works for both vendors: the two halves of a word as floats, and a
// float rounded to the nearest half, ties to even.
#if GB_HIP
static __device__ __forceinline__ void gb_halves(u32 word, float& low, float& high) {
    union {
        u32 word;
        _Float16 half[2];
    } both;
    both.word = word;
    low = (float)both.half[0];
    high = (float)both.half[1];
}
static __device__ __forceinline__ unsigned short gb_to_half(float value) {
    union {
        _Float16 half;
        unsigned short bits;
    } both;
    both.half = (_Float16)value;
    return both.bits;
}
#else
static __device__ __forceinline__ void gb_halves(u32 word, float& low, float& high) {
    asm("{\n .reg .b16 a, b;\n mov.b32 {a, b}, %2;\n cvt.f32.f16 %0, a;\n cvt.f32.f16 %1, b;\n}"
        : "=f"(low), "=f"(high)
        : "r"(word));
}
static __device__ __forceinline__ unsigned short gb_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

// The gate of a feed-forward network: SiLU of `gate` times `up`.
static __device__ __forceinline__ float gb_gated(float gate, float up) { return gate / (1 + expf(-gate)) * up; }

// Loads 16 bytes that are read only once, bypassing the first-level cache, which then keeps data that are read again.
#if GB_HIP
static __device__ __forceinline__ uint4 gb_stream(const uint4* from) { return gb_word(from); }
#else
static __device__ __forceinline__ uint4 gb_stream(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}
#endif

// Loads 16 bytes through every cache, at this place in the program. For data that other threads read too and for which
// an early launch may have waited.
#if GB_HIP
static __device__ __forceinline__ uint4 gb_fetch(const uint4* from) { return gb_word(from); }
#else
static __device__ __forceinline__ uint4 gb_fetch(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}
#endif

// Hints for the second-level cache (PTX ISA, createpolicy, prefetch, cp.async.bulk.prefetch): a load of 16 bytes by a
// policy, whose lines leave the cache last or first; and prefetches of a line, and of a multiple of 16 bytes. Where the
// hardware has no such hint, the load is an ordinary one and the prefetch does nothing.
#if !GB_HIP && __CUDA_ARCH__ >= 800
static __device__ __forceinline__ u64 gb_keep_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ __forceinline__ u64 gb_pass_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ __forceinline__ uint4 gb_hinted(const uint4* from, u64 policy) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from), "l"(policy));
    return v;
}
#else
static __device__ __forceinline__ u64 gb_keep_policy() { return 0; }
static __device__ __forceinline__ u64 gb_pass_policy() { return 0; }
static __device__ __forceinline__ uint4 gb_hinted(const uint4* from, u64) { return gb_load_l2(from); }
#endif
static __device__ __forceinline__ void gb_prefetch_l2(const void* line) {
#if !GB_HIP
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#endif
}
static __device__ __forceinline__ void gb_bulk_prefetch_l2(const void* from, u32 bytes) {
#if !GB_HIP && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// Pairs of halves: the difference of two; a·b + c, whose product is exact wherever it is used here. And gb_bytes, which
// selects four bytes of two words: nibble i of `choice` is the index of the byte that becomes byte i.
#if GB_HIP
typedef _Float16 gb_half2 __attribute__((ext_vector_type(2)));
typedef _Float16 gb_half4 __attribute__((ext_vector_type(4)));
typedef short gb_short4 __attribute__((ext_vector_type(4)));
typedef float gb_float4 __attribute__((ext_vector_type(4)));
static __device__ __forceinline__ u32 gb_half2_minus(u32 a, u32 b) {
    return gb_as<u32>(gb_as<gb_half2>(a) - gb_as<gb_half2>(b));
}
static __device__ __forceinline__ u32 gb_half2_fma(u32 a, u32 b, u32 c) {
    return gb_as<u32>(gb_as<gb_half2>(a) * gb_as<gb_half2>(b) + gb_as<gb_half2>(c));
}
static __device__ __forceinline__ u32 gb_bytes(u32 a, u32 b, u32 choice) {
    const u32 wide = (choice & 15u) | (choice & 0xf0u) << 4 | (choice & 0xf00u) << 8 | (choice & 0xf000u) << 12;
    return __builtin_amdgcn_perm(b, a, wide);
}
#else
static __device__ __forceinline__ u32 gb_half2_minus(u32 a, u32 b) {
    u32 difference;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}
static __device__ __forceinline__ u32 gb_half2_fma(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
static __device__ __forceinline__ u32 gb_bytes(u32 a, u32 b, u32 choice) {
    u32 chosen;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(chosen) : "r"(a), "r"(b), "r"(choice));
    return chosen;
}
#endif

// Computes c += a·b of a warp: 16 rows × GB_COLUMNS columns, 16 products each, of halves or bfloat16, with sums in
// float. A lane holds:
//   rows of a      gb_row(), and on NVIDIA also gb_row() + 8: GB_ROWS of them
//   columns of b   gb_row()
//   inner places   a quarter, number gb_part(); the order of the places is free, but the same in a and b
//   c[i]           row gb_sum_row(i), column gb_sum_column(i)
#if GB_HIP  // CDNA's 16x16x16 (CDNA 3 ISA, "Matrix Arithmetic Instructions"; since gfx90a)
#define GB_COLUMNS 16
#define GB_ROWS 1
static __device__ __forceinline__ u32 gb_row() { return threadIdx.x % 16; }
static __device__ __forceinline__ u32 gb_part() { return threadIdx.x % 64 / 16; }
static __device__ __forceinline__ u32 gb_sum_row(u32 i) { return 4 * gb_part() + i; }
static __device__ __forceinline__ u32 gb_sum_column(u32) { return gb_row(); }
template <bool BRAIN>
static __device__ __forceinline__ void gb_multiply(float (&c)[4], const u32 (&a)[2], const u32 (&b)[2]) {
    const gb_float4 sum = gb_as<gb_float4>(c);
    gb_float4 found;
    if (BRAIN)
        found = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(gb_as<gb_short4>(a), gb_as<gb_short4>(b), sum, 0, 0, 0);
    else found = __builtin_amdgcn_mfma_f32_16x16x16f16(gb_as<gb_half4>(a), gb_as<gb_half4>(b), sum, 0, 0, 0);
    for (int i = 0; i < 4; ++i) c[i] = found[i];
}
// Computes c += a·b of a wave: 32 rows × 32 columns, 8 products each, of halves, with sums in float (CDNA's 32x32x8). A
// lane holds the four inner places from 4·(lane / 32) on, of row lane % 32 of a and of column lane % 32 of b. c[i] is
// in that column, in row 8·(i / 4) + 4·(lane / 32) + i % 4. gfx950 has twice the rate with 16 products each (32x32x16),
// so that a lane holds the eight inner places from 8·(lane / 32) on.
typedef float gb_float16 __attribute__((ext_vector_type(16)));
typedef _Float16 gb_half8 __attribute__((ext_vector_type(8)));
#ifdef __gfx950__
#define GB_LANE_WORDS 2
#define GB_MULTIPLY_32(a, b, c) \
    __builtin_amdgcn_mfma_f32_32x32x16_f16(gb_as<gb_half8>(a), gb_as<gb_half8>(b), c, 0, 0, 0)
#else
#define GB_LANE_WORDS 1
#define GB_MULTIPLY_32(a, b, c) __builtin_amdgcn_mfma_f32_32x32x8f16(gb_as<gb_half4>(a), gb_as<gb_half4>(b), c, 0, 0, 0)
#endif
static __device__ __forceinline__ void gb_multiply_32(
    float (&c)[16], const u64 (&a)[GB_LANE_WORDS], const u64 (&b)[GB_LANE_WORDS]) {
    const gb_float16 sums = gb_as<gb_float16>(c);
    const gb_float16 found = GB_MULTIPLY_32(a, b, sums);
#pragma unroll
    for (int i = 0; i < 16; ++i) c[i] = found[i];
}
#else  // PTX ISA, mma.m16n8k16; sm_80
#define GB_COLUMNS 8
#define GB_ROWS 2
static __device__ __forceinline__ u32 gb_row() { return threadIdx.x % 32 / 4; }
static __device__ __forceinline__ u32 gb_part() { return threadIdx.x % 4; }
static __device__ __forceinline__ u32 gb_sum_row(u32 i) { return gb_row() + 8 * (i / 2); }
static __device__ __forceinline__ u32 gb_sum_column(u32 i) { return 2 * gb_part() + i % 2; }
template <bool BRAIN>
static __device__ __forceinline__ void gb_multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if (BRAIN)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
