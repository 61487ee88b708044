// A thread of each SM issues products of 128 rows by tcgen05.mma, one after the other, with sums in tensor memory.
//
//   COLUMNS  columns of a product: 64, 128 or 256
//   KIND     f16, tf32 or f8f6f4, and FORMAT the number of the format of A and B in that kind
//
// All elements of A are equal, and all of B, so that the sum of every element is known and no layout matters. `words` has
// four bytes of A's elements and of B's. `cycles` is as in instructions.cu.
#if GB_TCGEN05
#define BODY 16
#define ROWS 128
#define ROW_BYTES 128
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

extern "C" __global__ void __launch_bounds__(128, 1)
    tcgen05_chains(const u32* words, u32 rounds, float* sums, u64* cycles) {
    extern __shared__ u8 unaligned[];
    __shared__ u64 done;
    __shared__ u32 reserved;
    u8* const matrices = unaligned + (0u - gb_shared_address(unaligned)) % 1024;
    for (u32 i = threadIdx.x; i < (ROWS + COLUMNS) * ROW_BYTES / 4; i += 128)
        ((u32*)matrices)[i] = words[i >= ROWS * ROW_BYTES / 4];
    if (threadIdx.x == 0) gb_barrier_init(&done);
    if (threadIdx.x < 32) gb_tensor_memory<256>(&reserved);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // makes the threads' writes visible to the products
    gb_before_barrier();
    __syncthreads();
    gb_after_barrier();
    const u32 d = reserved;
    if (threadIdx.x == 0) {
        const u64 a = gb_described(matrices), b = gb_described(matrices + ROWS * ROW_BYTES);
        const u32 product = gb_product_of(FORMAT, COLUMNS);
        const u64 start = gb_clock();
#pragma unroll 1
        for (u32 round = 0; round < rounds; ++round) {
#pragma unroll
            for (u32 i = 0; i < BODY; ++i)
                GB_TCGEN05_MMA(TEXT(KIND), d, a + i % 4 * 2, b + i % 4 * 2, product, round > 0 || i > 0);
        }
        gb_products_arrive(&done);
        gb_barrier_await(&done, 0);
        cycles[2 * blockIdx.x] = gb_clock() - start;
        cycles[2 * blockIdx.x + 1] = gb_unit();
    }
    gb_barrier_await(&done, 0);
    gb_after_barrier();
    float* const row = sums + ((u64)blockIdx.x * ROWS + threadIdx.x) * COLUMNS;
    for (u32 first = 0; first < COLUMNS; first += 16) {
        u32 mine[16];
        gb_read_sums(d + (threadIdx.x / 32 << 21) + first, mine);
#pragma unroll
        for (u32 i = 0; i < 16; ++i) row[first + i] = __uint_as_float(mine[i]);
    }
    gb_before_barrier();
    __syncthreads();
    if (threadIdx.x < 32) gb_free_tensor_memory<256>(d);
}
#endif
