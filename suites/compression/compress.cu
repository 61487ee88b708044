// The format of a block of compressed chunks in transit: the offsets and the sizes of its chunks, 64 bits each, then
// the chunks, each aligned to 16 bytes. Offsets count from the start of the block.

#define PLACES 256  // threads of `place`: a power of two
#define LINE 16     // bytes to which chunks are aligned

static __device__ __forceinline__ u64 lines_of(u64 bytes) { return (bytes + LINE - 1) / LINE; }

// Writes the table of a packed block with `count` chunks of these sizes, and its total number of bytes to `total`. One
// block of threads.
extern "C" __global__ void place(const u64* sizes, u32 count, u64* table, u64* total) {
    __shared__ u64 sums[PLACES];
    u64 base = lines_of(16ULL * count) * LINE;
    for (u32 first = 0; first < count; first += PLACES) {
        u32 chunk = first + threadIdx.x;
        u64 mine = chunk < count ? lines_of(sizes[chunk]) * LINE : 0;
        sums[threadIdx.x] = mine;
        __syncthreads();
        for (u32 step = 1; step < PLACES; step *= 2) {  // inclusive scan (Hillis & Steele, CACM 29, 1986)
            u64 before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
            __syncthreads();
            sums[threadIdx.x] += before;
            __syncthreads();
        }
        if (chunk < count) {
            table[chunk] = base + sums[threadIdx.x] - mine;
            table[count + chunk] = sizes[chunk];
        }
        base += sums[PLACES - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) *total = base;
}

// Copies each chunk from its compressed location, `stride` bytes apart, to its place in the packed block. One block of
// threads per chunk.
extern "C" __global__ void pack(const uint4* chunks, u64 stride, u32 count, uint4* packed) {
    const u64* table = (const u64*)packed;
    const uint4* from = chunks + blockIdx.x * (stride / LINE);
    uint4* to = packed + table[blockIdx.x] / LINE;
    u64 lines = lines_of(table[count + blockIdx.x]);
    for (u64 line = threadIdx.x; line < lines; line += blockDim.x) to[line] = from[line];
}

// Finds the chunks of a received block. An entry of the table that points beyond `bytes` becomes an empty chunk, so
// that damaged data cannot make a codec read other memory.
extern "C" __global__ void unpack(const u64* packed, u64 bytes, u32 count, u64* sizes, u64* pointers) {
    for (u64 chunk = gb_thread(); chunk < count; chunk += gb_threads()) {
        u64 offset = packed[chunk], size = packed[count + chunk];
        bool inside = offset % LINE == 0 && offset <= bytes && size <= bytes - offset;
        sizes[chunk] = inside ? size : 0;
        pointers[chunk] = (u64)packed + (inside ? offset : 0);
    }
}

// Takes a packed block of at most `bytes` bytes out of the memory of another device. Its table says where its last chunk
// ends; a damaged one takes too little or all of the room. Both arrays are aligned to lines.
#define LOADS 4  // in flight per thread
extern "C" __global__ void take(const uint4* packed, u32 count, u64 bytes, uint4* room) {
    const u64* table = (const u64*)packed;
    u64 lines = table[count - 1] / LINE + lines_of(table[2 * count - 1]);
    lines = lines < bytes / LINE ? lines : bytes / LINE;
    for (u64 line = gb_thread(); line < lines; line += LOADS * gb_threads()) {
        uint4 v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; ++k)
            if (line + k * gb_threads() < lines) v[k] = gb_word(packed + line + k * gb_threads());
#pragma unroll
        for (int k = 0; k < LOADS; ++k)
            if (line + k * gb_threads() < lines) room[line + k * gb_threads()] = v[k];
    }
}
