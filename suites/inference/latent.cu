// Attention over latent vectors for 64 heads of a sequence, and the join of its parts. A token has LATENT + ROTARY halves,
// which all heads read: all of them as its key, the first LATENT as its value. The cache has pages of 64 tokens.
#define HEADS 64
#define PAGE 64
#define LATENT 512
#define ROTARY 64

// Adds up the parts of a head, which have their own largest score and sum of powers, and writes its result.
extern "C" __global__ void join_latent(const float* sums, const float2* scales, unsigned short* out, u32 parts) {
    const u64 head = blockIdx.x;
    float most = -1e30f, total = 0, joined[LATENT / 128] = {};
    for (u32 part = 0; part < parts; ++part) most = fmaxf(most, scales[head * parts + part].x);
    for (u32 part = 0; part < parts; ++part) {
        const float2 scale = scales[head * parts + part];
        const float factor = exp2f(scale.x - most);
        total += scale.y * factor;
#pragma unroll
        for (u32 i = 0; i < LATENT / 128; ++i) joined[i] += factor * sums[(head * parts + part) * LATENT + 128 * i + threadIdx.x];
    }
#pragma unroll
    for (u32 i = 0; i < LATENT / 128; ++i) out[head * LATENT + 128 * i + threadIdx.x] = gb_to_half(joined[i] / total);
}

#if !GB_HIP && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC_RTC__))
#define TILES ((LATENT + ROTARY) / 64)  // of 64 tokens (or heads) and 64 halves, in rows of 128 swizzled bytes
#define TILE_BYTES (PAGE * 128)
#define OWN (LATENT / 128)  // tiles of values that a warpgroup multiplies

// The swizzled matrix of values: 64 columns lie together, and the next 64 in the next tile.
static __device__ __forceinline__ u64 described_values(const void* shared) {
    return gb_described(shared) & ~(0x3fffull << 16) | (u64)(TILE_BYTES / 16) << 16;
}

struct Pages {  // two pages in shared memory, which bulk tensor copies fill
    u8* room;
    u64* full;
    const GbTensorMap* map;
    const int* table;
    u32 end;
    __device__ __forceinline__ u8* tile(u32 slot, u32 number) const { return room + (slot * TILES + number) * TILE_BYTES; }
    // Starts the copy of tiles of a page; the last page stands in for one behind it. By one thread.
    __device__ __forceinline__ void load(u32 page, u32 slot, u32 first, u32 count) const {
        const u32 number = table[page < end ? page : end - 1];
        gb_barrier_expect(full + slot, count * TILE_BYTES);
        for (u32 i = first; i < first + count; ++i) gb_tensor_load(tile(slot, i), map, i * 64, number * PAGE, full + slot);
    }
};

// Two warpgroups take two pages at a time. Each computes the scores of one page, and shares its powers with the other one
// in place of the page's rotated elements, which are no longer needed. Then each multiplies the powers of both pages with
// one half of the values. A tile is loaded again as soon as its last product is done.
extern "C" __global__ void __launch_bounds__(256, 1)
    attend_latent(const __grid_constant__ GbTensorMap queries, const __grid_constant__ GbTensorMap cache, const int* table,
                  float* sums, float2* scales, u32 blocks, u32 context, u32 chunk) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[3];
    __shared__ float tops[2][HEADS], totals[2][HEADS];
    u8* const query = memory + (0u - gb_shared_address(memory)) % 1024;
    const u32 group = gb_shuffle(threadIdx.x / 128, 0), mine = threadIdx.x % 128, lane = mine % 32, t = lane % 4;
    const u32 row = mine / 32 * 16 + lane / 4, pages = (context + PAGE - 1) / PAGE, first = blockIdx.y * chunk;
    const u32 end = first + chunk < pages ? first + chunk : pages;
    const Pages loads = {query + TILES * TILE_BYTES, full, &cache, table + (u64)(blockIdx.x / blocks) * pages, end};
    if (threadIdx.x == 0) {
        gb_barrier_init(full, 3);
        gb_barrier_init(full + 1, 3);
        gb_barrier_init(full + 2, 1);
        gb_barrier_expect(full + 2, TILES * TILE_BYTES);
        for (u32 i = 0; i < TILES; ++i)
            gb_tensor_load(query + i * TILE_BYTES, &queries, i * 64, blockIdx.x * HEADS, full + 2);
        for (u32 slot = 0; slot < 2; ++slot) {
            loads.load(first + slot, slot, 0, OWN);
            loads.load(first + slot, slot, OWN, OWN);
            loads.load(first + slot, slot, 2 * OWN, 1);
        }
    }
    __syncthreads();
    gb_barrier_await(full + 2, 0);
    float values[2][64] = {}, most[2] = {-1e30f, -1e30f}, total[2] = {};
    for (u32 page = first, parity = 0; page < end; page += 2, parity ^= 1) {
        float scores[32];
        gb_barrier_await(full + group, parity);
        const u64 a = gb_described(query), b = gb_described(loads.tile(group, 0));
        gb_begin_products();
#pragma unroll
        for (u32 k = 0; k < 4 * TILES; ++k) {
            const u32 place = k / 4 * (TILE_BYTES / 16) + k % 4 * 2;
            gb_products_shared(scores, a + place, b + place, k > 0);
        }
        gb_end_products();
        gb_await_products<0>();
        const u32 token = (page + group) * PAGE + 2 * t, last = page + group < end ? context : 0;
        float top[2] = {-1e30f, -1e30f};
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            if (token + i / 4 * 8 + i % 2 >= last) scores[i] = -1e30f;
            top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
        }
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            top[half] = fmaxf(top[half], gb_shuffle_xor(top[half], 1));
            top[half] = fmaxf(top[half], gb_shuffle_xor(top[half], 2));
            if (t == 0) tops[group][row + 8 * half] = top[half];
        }
        gb_barrier_await(full + (group ^ 1), parity);
        __syncthreads();
        float fade[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            top[half] = fmaxf(most[half], fmaxf(top[half], tops[group ^ 1][row + 8 * half]));
            fade[half] = exp2f(most[half] - top[half]);
            most[half] = top[half];
            total[half] *= fade[half];
        }
        u32 powers[2][4][4];  // of this warpgroup's page, and of the other one
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            scores[i] = exp2f(scores[i] - most[i / 2 % 2]);
            total[i / 2 % 2] += scores[i];
        }
#pragma unroll
        for (u32 i = 0; i < 16; ++i) powers[0][i / 4][i % 4] = gb_packed(scores[2 * i], scores[2 * i + 1]);
        uint4* const here = (uint4*)loads.tile(group, 2 * OWN) + mine;
        const uint4* const there = (const uint4*)loads.tile(group ^ 1, 2 * OWN) + mine;
#pragma unroll
        for (u32 k = 0; k < 4; ++k)
            here[128 * k] = make_uint4(powers[0][k][0], powers[0][k][1], powers[0][k][2], powers[0][k][3]);
#pragma unroll
        for (u32 i = 0; i < 128; ++i) values[i / 64][i % 64] *= fade[i / 2 % 2];
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            const uint4 four = there[128 * k];
            powers[1][k][0] = four.x, powers[1][k][1] = four.y, powers[1][k][2] = four.z, powers[1][k][3] = four.w;
        }
        gb_async_fence();
        __syncthreads();
        const bool has_next = page + 2 < end;
        if (has_next && threadIdx.x == 0)
            for (u32 slot = 0; slot < 2; ++slot) loads.load(page + 2 + slot, slot, 2 * OWN, 1);
        gb_begin_products();
#pragma unroll
        for (u32 other = 0; other < 2; ++other) {
#pragma unroll
            for (u32 k = 0; k < 4; ++k)
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    const u8* const tile = loads.tile(group ^ other, OWN * group + OWN / 2 * half);
                    gb_products_turned(values[half], powers[other][k], described_values(tile) + k * 128, 1);
                }
            gb_end_products();
        }
#pragma unroll
        for (u32 other = 0; other < 2; ++other) {
            if (other == 0) gb_await_products<1>();
            else gb_await_products<0>();
            gb_group_barrier(1 + group, 128);
            if (has_next && mine == 0) loads.load(page + 2 + (group ^ other), group ^ other, OWN * group, OWN);
        }
    }
    const u64 head = (u64)blockIdx.x * HEADS + row;
    float* const out = sums + (head * gridDim.y + blockIdx.y) * LATENT + LATENT / 2 * group + 2 * t;
#pragma unroll
    for (u32 i = 0; i < 128; i += 2)
        *(float2*)(out + (u64)(i / 2 % 2 * 8) * gridDim.y * LATENT + i / 4 * 8) =
            make_float2(values[i / 64][i % 64], values[i / 64][i % 64 + 1]);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        total[half] += gb_shuffle_xor(total[half], 1);
        total[half] += gb_shuffle_xor(total[half], 2);
        if (t == 0) totals[group][row + 8 * half] = total[half];
    }
    __syncthreads();
    if (group == 0 && t == 0)
        for (u32 half = 0; half < 2; ++half)
            scales[(head + 8 * half) * gridDim.y + blockIdx.y] = make_float2(most[half], total[half] + totals[1][row + 8 * half]);
}
#endif
