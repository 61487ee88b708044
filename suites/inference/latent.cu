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
#ifndef LAG
#define LAG 8.f  // a score may exceed the one that powers refer to by so much: 2⁸ is a half
#endif

// The swizzled matrix of values: 64 columns lie together, and the next 64 in the next tile.
static __device__ __forceinline__ u64 described_values(const void* shared) {
    return gb_described(shared) & ~(0x3fffull << 16) | (u64)(TILE_BYTES / 16) << 16;
}

// The tiles of a block's shared memory: of its queries (their rotated elements are in registers), of a page with an even
// and one with an odd number, and of the powers of both. Bulk tensor copies fill the pages, each tile with a barrier.
struct Tiles {
    u8* room;
    u64* full;
    const GbTensorMap* map;
    const int* table;
    u32 end;
    __device__ __forceinline__ u8* page(u32 odd, u32 tile) const { return room + (OWN * 2 + odd * TILES + tile) * TILE_BYTES; }
    __device__ __forceinline__ u8* powers(u32 odd) const { return room + (OWN * 2 + 2 * TILES + odd) * TILE_BYTES; }
    __device__ __forceinline__ u32 number(u32 page) const { return table[page < end ? page : end - 1]; }
#if defined(AHEAD)
    __device__ __forceinline__ void prefetch(u32 number, u32 tile) const {
        asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(tile * 64), "r"(number * PAGE) : "memory");
    }
#endif
    // Starts the copy of a tile of the page with this number. By one thread.
    __device__ __forceinline__ void load(u32 number, u32 odd, u32 tile) const {
        u64* const barrier = full + odd * TILES + tile;
        gb_barrier_expect(barrier, TILE_BYTES);
#if defined(HINT)
        u64 policy;
        if (HINT == 1) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        else asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
                gb_shared_address(page(odd, tile))),
            "l"(map), "r"(tile * 64), "r"(number * PAGE), "r"(gb_shared_address(barrier)), "l"(policy)
            : "memory");
#else
        gb_tensor_load(page(odd, tile), map, tile * 64, number * PAGE, barrier);
#endif
    }
};

// A warpgroup's half of the values, and what the powers of its rows refer to.
template <u32 GROUP>
struct Half {
    const Tiles& tiles;
    float (*tops)[HEADS];
    u32 row, place;
    float values[LATENT / 4] = {}, most[2] = {-1e30f, -1e30f}, total[2] = {};
    __device__ __forceinline__ Half(const Tiles& tiles, float (*tops)[HEADS]) : tiles(tiles), tops(tops) {
        const u32 mine = threadIdx.x % 128, lane = mine % 32, line = mine / 32 * 16 + lane % 16;
        row = mine / 32 * 16 + lane / 4;
        place = line * 128 | (lane / 16 ^ line % 8) * 16;
    }
    // Waits for the products of the whole warpgroup.
    __device__ __forceinline__ void finish() {
        gb_await_products<0>();
#if !defined(NOBAR)
        gb_group_barrier(3 + GROUP, 128);
#endif
    }
    // Lets the powers refer to other scores from here on.
    __device__ __forceinline__ void refer(const float (&top)[2]) {
        if (top[0] != most[0] || top[1] != most[1]) {
            const float fade[2] = {gb_exp2(most[0] - top[0]), gb_exp2(most[1] - top[1])};
#pragma unroll
            for (u32 i = 0; i < LATENT / 4; ++i) values[i] *= fade[i / 2 % 2];
            total[0] *= fade[0], total[1] *= fade[1];
            most[0] = top[0], most[1] = top[1];
        }
    }
    // Begins the products of the powers of the other warpgroup's page.
    __device__ __forceinline__ void take_other() {
        gb_group_barrier(1 + (GROUP ^ 1), 256);
        const float top[2] = {tops[GROUP ^ 1][row], tops[GROUP ^ 1][row + 8]};
        refer(top);
        const u64 a = gb_described(tiles.powers(GROUP ^ 1)), b = described_values(tiles.page(GROUP ^ 1, OWN * GROUP));
        gb_begin_products();
#pragma unroll
        for (u32 k = 0; k < 4; ++k) gb_products_turned(values, a + 2 * k, b + 128 * k);
        gb_end_products();
    }
    // Computes the scores of a page as its tiles arrive.
    __device__ __forceinline__ void score(float (&scores)[32], const u32 (&rotated)[4][4], u32 parity) {
        const u64 a = gb_described(tiles.room), b = gb_described(tiles.page(GROUP, 0));
#pragma unroll
        for (u32 i = 0; i < TILES; ++i) {
            gb_barrier_await(tiles.full + GROUP * TILES + i, parity);
            gb_begin_products();
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                const u32 place = i * (TILE_BYTES / 16) + 2 * k;
                if (i < TILES - 1) gb_products_shared(scores, a + place, b + place, i + k > 0);
                else gb_products(scores, rotated[k], b + place, 1);
            }
        }
        gb_end_products();
        finish();
    }
    // Turns the scores into powers and shares them; begins their products after `before`.
    __device__ __forceinline__ void share(float (&scores)[32], u32 (&powers)[4][4], u32 token, u32 context) {
        float top[2] = {-1e30f, -1e30f}, other[2];
        if (token + PAGE > context) {
#pragma unroll
            for (u32 i = 0; i < 32; ++i)
                if (token + threadIdx.x % 4 * 2 + i / 4 * 8 + i % 2 >= context) scores[i] = -1e30f;
        }
#pragma unroll
        for (u32 i = 0; i < 32; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            top[half] = fmaxf(top[half], gb_shuffle_xor(top[half], 1));
            top[half] = fmaxf(top[half], gb_shuffle_xor(top[half], 2));
            other[half] = top[half] = top[half] > most[half] + LAG ? top[half] : most[half];
            if (threadIdx.x % 4 == 0) tops[GROUP][row + 8 * half] = top[half];
        }
        float sum[2] = {};
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            scores[i] = gb_exp2(scores[i] - top[i / 2 % 2]);
            sum[i / 2 % 2] += scores[i];
        }
#pragma unroll
        for (u32 i = 0; i < 16; ++i) powers[i / 4][i % 4] = gb_packed(scores[2 * i], scores[2 * i + 1]);
#pragma unroll
        for (u32 k = 0; k < 4; ++k)
            gb_store_matrices(tiles.powers(GROUP) + (place ^ 32 * k),
                              make_uint4(powers[k][0], powers[k][1], powers[k][2], powers[k][3]));
        gb_async_fence();
        gb_group_arrive(1 + GROUP, 256);
        if (GROUP == 0) finish();
        late[0] = top[0], late[1] = top[1], sums[0] = sum[0], sums[1] = sum[1];
    }
    float late[2], sums[2];
    __device__ __forceinline__ void take_own(const u32 (&powers)[4][4]) {
        refer(late);
        total[0] += sums[0], total[1] += sums[1];
        const u64 b = described_values(tiles.page(GROUP, OWN * GROUP));
        gb_begin_products();
#pragma unroll
        for (u32 k = 0; k < 4; ++k) gb_products_turned(values, powers[k], b + 128 * k, 1);
        gb_end_products();
    }
};

template <u32 GROUP>
static __device__ __forceinline__ void attend_half(const Tiles& tiles, float (*tops)[HEADS], float (*totals)[HEADS],
                                                   float* sums, float2* scales, unsigned short* out, u32 context, u32 first) {
    Half<GROUP> half(tiles, tops);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const u32 stop = first + (tiles.end - first + 1) / 2 * 2;
    u32 rotated[4][4], powers[4][4];
    float scores[32];
    gb_barrier_await(tiles.full + 2 * TILES, 0);
#pragma unroll
    for (u32 k = 0; k < 4; ++k) gb_matrices(rotated[k], tiles.powers(0) + (half.place ^ 32 * k));
    __syncthreads();
    u32 parity = 0;
    for (u32 page = first + GROUP; page < stop; page += 2, parity ^= 1) {
        const bool goes_on = page + 2 < stop, other_goes_on = page + 1 < stop;
        const u32 next = tiles.number(page + 2), other = tiles.number(page + 1);
        if (GROUP == 1) {
            half.take_other();
            half.finish();
            if (lane == 0 && other_goes_on) tiles.load(other, 0, OWN + warp);
        }
#if defined(AHEAD)
        if (page + AHEAD < stop && threadIdx.x % 128 < TILES && GROUP == 0 && blockIdx.x % 2 == 0) {
            const u32 soon = tiles.number(page + AHEAD);
            tiles.prefetch(soon, threadIdx.x % 128);
            tiles.prefetch(tiles.number(page + AHEAD + 1), threadIdx.x % 128);
        }
#endif
        half.score(scores, rotated, parity);
        if (goes_on && threadIdx.x % 128 == 0) tiles.load(next, GROUP, TILES - 1);
        if (GROUP == 0 && page > first) half.take_other();
        half.share(scores, powers, page * PAGE, page < tiles.end ? context : 0);
        if (GROUP == 0 && page > first && lane == 0) tiles.load(other, 1, warp);
        half.take_own(powers);
        half.finish();
        if (goes_on && lane == 0) tiles.load(next, GROUP, OWN * GROUP + warp);
    }
    if (GROUP == 0) {
        half.take_other();
        gb_await_products<0>();
    }
    const u64 head = (u64)blockIdx.x * HEADS + half.row;
    const u32 t = lane % 4;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        half.total[i] += gb_shuffle_xor(half.total[i], 1);
        half.total[i] += gb_shuffle_xor(half.total[i], 2);
        if (t == 0) totals[GROUP][half.row + 8 * i] = half.total[i];
    }
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 2; ++i) half.total[i] += totals[GROUP ^ 1][half.row + 8 * i];
    if (gridDim.y == 1) {
        u32* const words = (u32*)out + head * (LATENT / 2) + LATENT / 4 * GROUP + t;
        const float scale[2] = {1 / half.total[0], 1 / half.total[1]};
#pragma unroll
        for (u32 i = 0; i < LATENT / 4; i += 2)
            words[i / 2 % 2 * (8 * LATENT / 2) + i / 4 * 4] =
                gb_packed(half.values[i] * scale[i / 2 % 2], half.values[i + 1] * scale[i / 2 % 2]);
        return;
    }
    float* const place = sums + (head * gridDim.y + blockIdx.y) * LATENT + LATENT / 2 * GROUP + 2 * t;
#pragma unroll
    for (u32 i = 0; i < LATENT / 4; i += 2)
        *(float2*)(place + (u64)(i / 2 % 2 * 8) * gridDim.y * LATENT + i / 4 * 8) =
            make_float2(half.values[i], half.values[i + 1]);
    if (GROUP == 0 && t == 0)
        for (u32 i = 0; i < 2; ++i)
            scales[(head + 8 * i) * gridDim.y + blockIdx.y] = make_float2(half.most[i], half.total[i]);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    attend_latent(const __grid_constant__ GbTensorMap queries, const __grid_constant__ GbTensorMap cache, const int* table,
                  float* sums, float2* scales, unsigned short* out, u32 blocks, u32 context, u32 chunk) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[2 * TILES + 1];
    __shared__ float tops[2][HEADS], totals[2][HEADS];
    u8* const room = memory + (0u - gb_shared_address(memory)) % 1024;
    const u32 pages = (context + PAGE - 1) / PAGE, first = blockIdx.y * chunk;
    const u32 end = first + chunk < pages ? first + chunk : pages;
    const Tiles tiles = {room, full, &cache, table + (u64)(blockIdx.x / blocks) * pages, end};
    if (threadIdx.x == 0) {
        for (u32 i = 0; i <= 2 * TILES; ++i) gb_barrier_init(full + i, 1);
        gb_barrier_expect(full + 2 * TILES, TILES * TILE_BYTES);
        for (u32 i = 0; i < TILES; ++i)
            gb_tensor_load(i + 1 < TILES ? room + i * TILE_BYTES : tiles.powers(0), &queries, i * 64, blockIdx.x * HEADS,
                           full + 2 * TILES);
        for (u32 odd = 0; odd < 2; ++odd)
            for (u32 i = 0; i < TILES; ++i) tiles.load(tiles.number(first + odd), odd, i);
    }
    __syncthreads();
    if (gb_shuffle(threadIdx.x / 128, 0) == 0)
        attend_half<0>(tiles, tops, totals, sums, scales, out, context, first);
    else attend_half<1>(tiles, tops, totals, sums, scales, out, context, first);
}
#endif
