// Attention over latent vectors for 64 heads of a sequence, and the join of its parts. A token has LATENT + ROTARY halves,
// which all heads read: all of them as its key, the first LATENT as its value. The cache has pages of 64 tokens.
#define HEADS 64
#define PAGE 64
#define LATENT 512
#define ROTARY 64

// Joins the results of the parts of a head, of which `scales` has the score that powers refer to and the sum of powers.
extern "C" __global__ void join_latent(const uint2* results, const float2* scales, uint2* out, u32 parts) {
    const u64 head = blockIdx.x;
    gb_wait_for_previous();
    gb_allow_next();
    float most = -1e30f, total = 0, joined[4] = {};
    for (u32 part = 0; part < parts; ++part) most = fmaxf(most, scales[head * parts + part].x);
    for (u32 part = 0; part < parts; ++part) {
        const float2 scale = scales[head * parts + part];
        const uint2 words = gb_word(results + (head * parts + part) * (LATENT / 4) + threadIdx.x);
        const float share = scale.y * exp2f(scale.x - most);
        float four[4];
        gb_halves(words.x, four[0], four[1]);
        gb_halves(words.y, four[2], four[3]);
        total += share;
        for (u32 i = 0; i < 4; ++i) joined[i] += share * four[i];
    }
    u32 words[4];
    for (u32 i = 0; i < 4; ++i) words[i] = gb_to_half(joined[i] / total);
    out[head * (LATENT / 4) + threadIdx.x] = make_uint2(words[0] | words[1] << 16, words[2] | words[3] << 16);
}

#if !GB_HIP && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC_RTC__))
#define TILES ((LATENT + ROTARY) / 64)  // of 64 tokens (or heads) and 64 halves, in rows of 128 swizzled bytes
#define TILE_BYTES (PAGE * 128)
#define OWN (LATENT / 128)  // tiles of values that a warpgroup multiplies
#define KEPT 1  // the last tiles of the queries, which are in registers, so that there is room for powers
#define LAG 8.f  // powers of 2 refer to a score that is at most so much below the largest one: 2⁸ is a half
#define ROW_BYTES (LATENT + 16)  // of results in shared memory: 16 bytes more than they have, so that rows lie in other banks
#if defined(__CUDACC_RTC__)
#define CLUSTER 2  // blocks with the heads of one sequence, which copy its pages for each other
#else  // on the host, where blocks follow each other
#define CLUSTER 1
#endif

// The swizzled matrix of values: 64 columns lie together, and the next 64 in the next tile.
static __device__ __forceinline__ u64 described_values(const void* shared) {
    return gb_described(shared) & ~(0x3fffull << 16) | (u64)(TILE_BYTES / 16) << 16;
}

// A block's shared memory in tiles: of its queries, of a page with an even and one with an odd number, and of the powers of
// both. A half of a page has the tiles that one warpgroup multiplies as values; the last tile belongs to the page's own half.
struct Tiles {
    u8* room;
    u64 *full, *empty;  // barriers of the tiles of both pages, and of their halves
    __device__ __forceinline__ u8* page(u32 odd, u32 tile) const { return room + (2 * OWN + odd * TILES + tile) * TILE_BYTES; }
    __device__ __forceinline__ u8* powers(u32 odd) const { return room + (2 * OWN + 2 * TILES + odd) * TILE_BYTES; }
    // Copies the pages, each half as soon as its last reader is done. By one warp, which ends the kernel with an error if a
    // reader waits for seconds: what a warpgroup releases last is of its own page, after all that it awaits.
    __device__ __forceinline__ void load(const GbTensorMap* map, const int* table, u32 first, u32 end) const {
        const u32 lane = threadIdx.x % 32, rank = gb_cluster_rank();
        for (u32 number = first; number < end || (number - first) % 2; ++number) {
            const u32 odd = (number - first) % 2, turn = (number - first) / 2;
            const u32 place = table[number < end ? number : end - 1] * PAGE;  // one more page, so that their number is even
            for (u32 half = 0; half < 2; ++half) {
                if (turn > 0) gb_barrier_await(empty + 2 * odd + half, turn % 2 ^ 1);
                const u32 tile = lane < OWN ? OWN * half + lane : TILES - 1;
                if (lane < OWN + (odd == half)) {
                    u64* const barrier = full + odd * TILES + tile;
                    gb_barrier_expect(barrier, TILE_BYTES);
                    if (lane % CLUSTER == rank) gb_tensor_load_both(page(odd, tile), map, tile * 64, place, barrier);
                }
                __syncwarp();
            }
        }
        for (u32 odd = 0; odd < 2; ++odd) gb_barrier_await(empty + 3 * odd, (end - first + 1) / 2 % 2 ^ 1);
    }
};

// A warpgroup's half of the results. Its own pages are the even or the odd ones: it computes their scores, and both warpgroups
// multiply the powers with their half of the values, page by page. They take turns, so that products never pause:
//     even   scores of 2   values of 1   values of 2               scores of 4
//     odd    powers of 1   values of 1   values of 2   scores of 3   powers of 3
// The powers of 2 come during the values of 1, and the next pages arrive during the products after them.
template <u32 GROUP>
struct Half {
    const Tiles& tiles;
    float (*tops)[HEADS];
    u32 row, place;
    float values[LATENT / 4] = {}, most[2] = {-1e30f, -1e30f}, total[2] = {};  // of two rows; powers refer to `most`
    u32 kept[KEPT][4][4], powers[4][4];
    float late[2], sums[2];  // what the powers of the own page refer to, and their sums
    __device__ __forceinline__ Half(const Tiles& tiles, float (*tops)[HEADS]) : tiles(tiles), tops(tops) {
        const u32 mine = threadIdx.x % 128, lane = mine % 32, line = mine / 32 * 16 + lane % 16;
        row = mine / 32 * 16 + lane / 4;
        place = line * 128 | (lane / 16 ^ line % 8) * 16;
    }
    // Waits for the products of the whole warpgroup.
    __device__ __forceinline__ void finish() const {
        gb_await_products<0>();
        gb_group_barrier(3 + GROUP, 128);
    }
    // Lets half a page be loaded again.
    __device__ __forceinline__ void release(u32 odd) const {
        if (threadIdx.x % 128 < CLUSTER) gb_barrier_arrive_at(tiles.empty + 2 * odd + GROUP, threadIdx.x % 128);
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
    // Begins the products of the powers of the own page.
    __device__ __forceinline__ void take_own() {
        refer(late);
        total[0] += sums[0], total[1] += sums[1];
        const u64 b = described_values(tiles.page(GROUP, OWN * GROUP));
        gb_begin_products();
#pragma unroll
        for (u32 k = 0; k < 4; ++k) gb_products_turned(values, powers[k], b + 128 * k, 1);
        gb_end_products();
    }
    // Computes the scores of a page as its tiles arrive.
    __device__ __forceinline__ void score(float (&scores)[32], u32 parity) const {
        const u64 a = gb_described(tiles.room), b = gb_described(tiles.page(GROUP, 0));
#pragma unroll
        for (u32 i = 0; i < TILES; ++i) {
            if (GROUP == 1 && i == 1) {  // the values of the page before are done, and the queue has products
                gb_end_products();
                gb_await_products<1>();
                gb_group_barrier(3 + GROUP, 128);
                release(0);
            }
            gb_products_await(tiles.full + GROUP * TILES + i, parity);
            gb_begin_products();
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                const u32 place = i * (TILE_BYTES / 16) + 2 * k;
                if (i < TILES - KEPT) gb_products_shared(scores, a + place, b + place, i + k > 0);
                else gb_products(scores, kept[i - (TILES - KEPT)][k], b + place, 1);
            }
        }
        gb_end_products();
        finish();
    }
    // Turns the scores of the tokens below `last` into powers, and shares them.
    __device__ __forceinline__ void share(float (&scores)[32], u32 token, u32 last) {
        if (token + PAGE > last) {
#pragma unroll
            for (u32 i = 0; i < 32; ++i)
                if (token + threadIdx.x % 4 * 2 + i / 4 * 8 + i % 2 >= last) scores[i] = -1e30f;
        }
        late[0] = late[1] = -1e30f, sums[0] = sums[1] = 0;
#pragma unroll
        for (u32 i = 0; i < 32; ++i) late[i / 2 % 2] = fmaxf(late[i / 2 % 2], scores[i]);
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            late[half] = fmaxf(late[half], gb_shuffle_xor(late[half], 1));
            late[half] = fmaxf(late[half], gb_shuffle_xor(late[half], 2));
            if (late[half] <= most[half] + LAG) late[half] = most[half];
            if (threadIdx.x % 4 == 0) tops[GROUP][row + 8 * half] = late[half];
        }
#pragma unroll
        for (u32 i = 0; i < 32; ++i) {
            scores[i] = gb_exp2(scores[i] - late[i / 2 % 2]);
            sums[i / 2 % 2] += scores[i];
        }
#pragma unroll
        for (u32 i = 0; i < 16; ++i) powers[i / 4][i % 4] = gb_packed(scores[2 * i], scores[2 * i + 1]);
#pragma unroll
        for (u32 k = 0; k < 4; ++k)
            gb_store_matrices(tiles.powers(GROUP) + (place ^ 32 * k),
                              make_uint4(powers[k][0], powers[k][1], powers[k][2], powers[k][3]));
        gb_async_fence();
        gb_group_arrive(1 + GROUP, 256);
    }
    // Attends to all pages from `first` on. While one warpgroup turns scores into powers, the other one's products go on.
    __device__ __forceinline__ void attend(u32 first, u32 end, u32 context) {
        float scores[32];
        u32 parity = 0;
        for (u32 page = first + GROUP; page < end + (end - first) % 2; page += 2, parity ^= 1) {
            if (GROUP == 1) take_other();
            score(scores, parity);
            const bool has_other = GROUP == 0 && page > first;
            if (has_other) take_other();
            share(scores, page * PAGE, page < end ? context : 0);
            if (GROUP == 0) finish();
            if (has_other) release(1);
            take_own();
            finish();
            release(GROUP);
        }
        if (GROUP == 0) {
            take_other();
            finish();
        }
    }
    // Writes the results, each row of this half by one copy.
    __device__ __forceinline__ void write(float (*totals)[HEADS], unsigned short* out, float2* scales) {
        const u32 mine = threadIdx.x % 128;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            total[i] += gb_shuffle_xor(total[i], 1);
            total[i] += gb_shuffle_xor(total[i], 2);
            if (mine % 4 == 0) totals[GROUP][row + 8 * i] = total[i];
        }
        gb_group_barrier(5, 256);
        float scale[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            total[i] += totals[GROUP ^ 1][row + 8 * i];
            scale[i] = 1 / total[i];
            if (GROUP == 0 && mine % 4 == 0) scales[(row + 8 * i) * gridDim.y] = make_float2(most[i], total[i]);
        }
        u8* const rows = tiles.room + GROUP * HEADS * ROW_BYTES;
        u8* const line = rows + (mine / 32 * 16 + mine % 16) * ROW_BYTES + mine / 16 % 2 * 16;
#pragma unroll
        for (u32 i = 0; i < LATENT / 4; i += 8) {
            u32 words[4];
#pragma unroll
            for (u32 k = 0; k < 4; ++k)
                words[k] = gb_packed(values[i + 2 * k] * scale[k % 2], values[i + 2 * k + 1] * scale[k % 2]);
            gb_store_matrices(line + 4 * i, make_uint4(words[0], words[1], words[2], words[3]));
        }
        gb_async_fence();
        gb_group_barrier(3 + GROUP, 128);
        if (mine < HEADS) {
            gb_bulk_store(out + (u64)mine * gridDim.y * LATENT + LATENT / 2 * GROUP, rows + mine * ROW_BYTES, LATENT);
            gb_bulk_wait();
        }
    }
};

template <u32 GROUP>
static __device__ __forceinline__ void run(const Tiles& tiles, float (*tops)[HEADS], float (*totals)[HEADS],
                                           unsigned short* out, float2* scales, u32 first, u32 end, u32 context) {
    Half<GROUP> half(tiles, tops);
#pragma unroll
    for (u32 k = 0; k < 4 * KEPT; ++k) gb_matrices(half.kept[k / 4][k % 4], tiles.powers(k / 4) + (half.place ^ 32 * (k % 4)));
    gb_group_barrier(5, 256);
    half.attend(first, end, context);
    half.write(totals, out, scales);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    attend_latent(const __grid_constant__ GbTensorMap queries, const __grid_constant__ GbTensorMap cache, const int* table,
                  unsigned short* out, float2* scales, u32 blocks, u32 context, u32 chunk) {
    extern __shared__ u8 memory[];
    __shared__ u64 barriers[2 * TILES + 5];
    __shared__ float tops[2][HEADS], totals[2][HEADS];
    const Tiles tiles = {memory + (0u - gb_shared_address(memory)) % 1024, barriers, barriers + 2 * TILES};
    u64* const ready = barriers + 2 * TILES + 4;
    const u32 pages = (context + PAGE - 1) / PAGE, first = blockIdx.y * chunk, group = gb_shuffle(threadIdx.x / 128, 0);
    const u32 end = first + chunk < pages ? first + chunk : pages;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < 2 * TILES + 5; ++i) gb_barrier_init(barriers + i, i < 2 * TILES ? 1 : i < 2 * TILES + 4 ? CLUSTER : TILES);
    }
    gb_cluster_barrier();
    gb_allow_next();
    if (group == 2) {
        gb_fewer_registers<24>();
        const u32 lane = threadIdx.x % 32;
        if (threadIdx.x < 288) tiles.load(&cache, table + (u64)(blockIdx.x / blocks) * pages, first, end);
        else if (threadIdx.x < 320) {
            gb_wait_for_previous();
            if (lane < TILES) {
                gb_barrier_expect(ready, TILE_BYTES);
                gb_tensor_load(lane < TILES - KEPT ? tiles.room + lane * TILE_BYTES : tiles.powers(lane - (TILES - KEPT)), &queries, lane * 64,
                               blockIdx.x * HEADS, ready);
            }
        }
        __syncwarp();
    } else {
        gb_more_registers<240>();
        const u64 head = (u64)blockIdx.x * HEADS * gridDim.y + blockIdx.y;
        gb_barrier_await(ready, 0);
        if (group == 0) run<0>(tiles, tops, totals, out + head * LATENT, scales + head, first, end, context);
        else run<1>(tiles, tops, totals, out + head * LATENT, scales + head, first, end, context);
    }
    gb_cluster_barrier();
}
#endif
