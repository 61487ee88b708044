// Kernels with which checks compare and overwrite bytes. An array library would take seconds to compile its first
// reduction.

// Adds to found[0] the number of the n bytes that differ, and raises found[1] to n minus the place of the first one.
extern "C" __global__ void count_differences(const u8* a, const u8* b, u64 n, u64* found) {
    u64 count = 0, first = n;
    const u64 words = n / 8;
    for (u64 i = gb_thread(); i < words; i += gb_threads()) {
        const u64 change = ((const u64*)a)[i] ^ ((const u64*)b)[i];
        if (change)
            for (u32 k = 0; k < 8; k++)
                if (change >> (8 * k) & 255) {
                    count++;
                    if (8 * i + k < first) first = 8 * i + k;
                }
    }
    for (u64 i = 8 * words + gb_thread(); i < n; i += gb_threads())
        if (a[i] != b[i]) {
            count++;
            if (i < first) first = i;
        }
    if (count) {
        atomicAdd(found, count);
        atomicMax(found + 1, n - first);
    }
}

// Writes the complement of every byte.
extern "C" __global__ void invert_bytes(const u8* a, u64 n, u8* out) {
    const u64 words = n / 8;
    for (u64 i = gb_thread(); i < words; i += gb_threads()) ((u64*)out)[i] = ~((const u64*)a)[i];
    for (u64 i = 8 * words + gb_thread(); i < n; i += gb_threads()) out[i] = (u8)~a[i];
}

// Repeats the same eight bytes; the last copy is cut to the remaining bytes.
extern "C" __global__ void fill_bytes(u64 word, u64 n, u8* out) {
    const u64 words = n / 8;
    for (u64 i = gb_thread(); i < words; i += gb_threads()) ((u64*)out)[i] = word;
    for (u64 i = 8 * words + gb_thread(); i < n; i += gb_threads()) out[i] = (u8)(word >> (8 * (i % 8)));
}

// Splits bfloat16 numbers, eight at a time, into a plane of exponents and a plane of signs and fractions, a byte each.
extern "C" __global__ void split_weights(const uint4* weights, u64* exponents, u64* rest, u64 n) {
    for (u64 i = gb_thread(); i < n; i += gb_threads()) {
        const uint4 v = weights[i];
        const u32 words[] = {v.x, v.y, v.z, v.w};
        u64 high = 0, low = 0;
        for (u32 k = 0; k < 8; ++k) {
            const u32 word = words[k / 2] >> (16 * (k % 2)) & 0xffff;
            high |= (u64)(word >> 7 & 0xff) << (8 * k);
            low |= (u64)(word >> 8 & 0x80 | word & 0x7f) << (8 * k);
        }
        exponents[i] = high;
        rest[i] = low;
    }
}

// Joins the planes again.
extern "C" __global__ void merge_weights(const u64* exponents, const u64* rest, uint4* weights, u64 n) {
    for (u64 i = gb_thread(); i < n; i += gb_threads()) {
        const u64 high = exponents[i], low = rest[i];
        u32 words[4] = {0, 0, 0, 0};
        for (u32 k = 0; k < 8; ++k) {
            const u32 part = (u32)(low >> (8 * k)) & 0xff, word = (part & 0x80) << 8 | part & 0x7f;
            words[k / 2] |= (word | ((u32)(high >> (8 * k)) & 0xff) << 7) << (16 * (k % 2));
        }
        weights[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Products of bfloat16 weights, rows × cols, and a vector of floats: a warp sums ROWS rows, 16 weights of each at a time.
// A packed weight is a byte of sign and fraction, and four bits that are added to the exponent `base`. A weight outside
// of these 16 exponents is packed as the power of two of `base`, and stands in a list of its row.
#define ROWS 4
#define GROUP 16

static __device__ __forceinline__ u32 unpacked(u32 part, u32 code, u32 base) {
    return (part & 0x80u) << 24 | (part & 0x7fu) << 16 | (base + code) << 23;
}

struct Sixteen {
    float number[GROUP];
};

static __device__ __forceinline__ Sixteen packed_group(const uint4* rest, const uint2* codes, u64 i, u32 base) {
    const uint4 parts = gb_stream(rest + i);
    const uint2 nibbles = gb_word(codes + i);
    const u32 part_words[] = {parts.x, parts.y, parts.z, parts.w};
    Sixteen group;
#pragma unroll
    for (u32 k = 0; k < GROUP; ++k) {
        const u32 part = part_words[k / 4] >> (8 * (k % 4)), code = (k < 8 ? nibbles.x : nibbles.y) >> (4 * (k % 8)) & 15;
        group.number[k] = __uint_as_float(unpacked(part, code, base));
    }
    return group;
}

static __device__ __forceinline__ Sixteen plain_group(const uint4* weights, u64 i) {
    Sixteen group;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const uint4 v = gb_stream(weights + 2 * i + half);
        const u32 pairs[] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 k = 0; k < 8; ++k)
            group.number[8 * half + k] = __uint_as_float(k % 2 ? pairs[k / 2] & 0xffff0000u : pairs[k / 2] << 16);
    }
    return group;
}

#define PRODUCT(LOAD_GROUP, AFTER)                                                                        \
    const u32 lane = threadIdx.x % warpSize, groups = cols / GROUP;                                       \
    const u32 first = (u32)(gb_thread() / warpSize) * ROWS;                                               \
    if (first >= rows) return;                                                                            \
    float sums[ROWS] = {0};                                                                               \
    for (u32 i = lane; i < groups; i += warpSize) {                                                       \
        float4 part[GROUP / 4];                                                                           \
        _Pragma("unroll") for (u32 k = 0; k < GROUP / 4; ++k) part[k] = x[(u64)i * (GROUP / 4) + k];      \
        _Pragma("unroll") for (u32 r = 0; r < ROWS; ++r) {                                                \
            const u64 place = (u64)(first + r) * groups + i;                                              \
            const Sixteen group = LOAD_GROUP;                                                             \
            _Pragma("unroll") for (u32 k = 0; k < GROUP / 4; ++k)                                         \
                sums[r] += group.number[4 * k] * part[k].x + group.number[4 * k + 1] * part[k].y +        \
                           group.number[4 * k + 2] * part[k].z + group.number[4 * k + 3] * part[k].w;     \
        }                                                                                                 \
    }                                                                                                     \
    for (u32 r = 0; r < ROWS; ++r) {                                                                      \
        AFTER;                                                                                            \
        for (int mask = warpSize / 2; mask > 0; mask /= 2) sums[r] += gb_shuffle_xor(sums[r], mask);      \
        if (lane == 0) y[first + r] = sums[r];                                                            \
    }

extern "C" __global__ void plain_product(const uint4* weights, const float4* x, u32 rows, u32 cols, float* y) {
    PRODUCT(plain_group(weights, place), )
}

extern "C" __global__ void packed_product(const uint4* rest, const uint2* codes, u32 base, const u32* starts,
                                          const u32* columns, const u32* bits, const float4* x, u32 rows, u32 cols,
                                          float* y) {
    PRODUCT(packed_group(rest, codes, place, base),
            for (u32 at = starts[first + r] + lane; at < starts[first + r + 1]; at += warpSize) sums[r] +=
            (__uint_as_float(bits[at] << 16) - __uint_as_float(base << 23)) * ((const float*)x)[columns[at]])
}

// Restores the weights, all but those of the lists, and then those of the lists.
extern "C" __global__ void unpack_weights(const uint4* rest, const uint2* codes, u32 base, u64 groups, uint4* weights) {
    for (u64 i = gb_thread(); i < groups; i += gb_threads()) {
        const Sixteen group = packed_group(rest, codes, i, base);
        u32 words[GROUP / 2];
#pragma unroll
        for (u32 k = 0; k < GROUP / 2; ++k)
            words[k] = __float_as_uint(group.number[2 * k]) >> 16 | (__float_as_uint(group.number[2 * k + 1]) & 0xffff0000u);
        weights[2 * i] = make_uint4(words[0], words[1], words[2], words[3]);
        weights[2 * i + 1] = make_uint4(words[4], words[5], words[6], words[7]);
    }
}
extern "C" __global__ void patch_weights(const u32* starts, const u32* columns, const u32* bits, u32 rows, u32 cols,
                                         unsigned short* weights) {
    for (u64 row = gb_thread(); row < rows; row += gb_threads())
        for (u32 at = starts[row]; at < starts[row + 1]; ++at) weights[row * cols + columns[at]] = (unsigned short)bits[at];
}
