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
