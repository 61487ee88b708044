// Reads an array, so that caches write back their modified lines and fill with clean lines of the array.
// Each vector holds four equal words, whose exclusive or is 0. So `never` is not written, but the compiler cannot know
// this and keeps the reads.
extern "C" __global__ void read_all(const uint4* vectors, unsigned long long count, unsigned int* never) {
    unsigned int seen = 0;
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const uint4 vector = vectors[i];
        seen |= vector.x ^ vector.y ^ vector.z ^ vector.w;
    }
    if (seen) *never = seen;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// Loads an array with high priority. Only such loads displace lines that were loaded or stored with high priority.
extern "C" __global__ void claim_all(const uint4* vectors, unsigned long long count, unsigned int* never) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    unsigned int seen = 0;
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint4 vector;
        asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
                     : "l"(vectors + i), "l"(policy));
        seen |= vector.x ^ vector.y ^ vector.z ^ vector.w;
    }
    if (seen) *never = seen;
}

// Gives ordinary priority to the lines of an array; a line is eight vectors long.
extern "C" __global__ void release_all(const uint4* vectors, unsigned long long count) {
    const unsigned long long step = 8ull * gridDim.x * blockDim.x;
    for (unsigned long long i = 8ull * ((unsigned long long)blockIdx.x * blockDim.x + threadIdx.x); i < count; i += step)
        asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(vectors + i) : "memory");
}
#endif
