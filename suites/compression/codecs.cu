// What checks do to bytes. Own kernels: the first reduction of an array library takes seconds to compile.

// Adds to `found` how many of n bytes differ.
extern "C" __global__ void count_differences(const u8* a, const u8* b, u64 n, u64* found) {
    u64 count = 0;
    const u64 words = n / 8;
    for (u64 i = gb_thread(); i < words; i += gb_threads()) {
        const u64 change = ((const u64*)a)[i] ^ ((const u64*)b)[i];
        if (change)
            for (u32 k = 0; k < 8; k++) count += (change >> (8 * k) & 255) != 0;
    }
    for (u64 i = 8 * words + gb_thread(); i < n; i += gb_threads()) count += a[i] != b[i];
    if (count) atomicAdd(found, count);
}

// The complement of every byte.
extern "C" __global__ void invert_bytes(const u8* a, u64 n, u8* out) {
    const u64 words = n / 8;
    for (u64 i = gb_thread(); i < words; i += gb_threads()) ((u64*)out)[i] = ~((const u64*)a)[i];
    for (u64 i = 8 * words + gb_thread(); i < n; i += gb_threads()) out[i] = (u8)~a[i];
}

// The same eight bytes again and again; of the last ones as many as fit.
extern "C" __global__ void fill_bytes(u64 word, u64 n, u8* out) {
    const u64 words = n / 8;
    for (u64 i = gb_thread(); i < words; i += gb_threads()) ((u64*)out)[i] = word;
    for (u64 i = 8 * words + gb_thread(); i < n; i += gb_threads()) out[i] = (u8)(word >> (8 * (i % 8)));
}
